"""POST /v1/embeddings: values, pooling, limits, refusals."""
import base64
import json
import math
import shutil
import struct

import pytest
from conftest import MODELS, check_error, wait_until
from golden import Golden, near

TEXT = "The river ran low"


def embed(server, text=TEXT, headers=None, **fields):
    return server.post("/v1/embeddings", {"model": server.model, "input": text, **fields}, headers=headers)


def vectors(server, text=TEXT, **fields):
    answer = embed(server, text, **fields)
    assert answer.status == 200, answer
    return [d["embedding"] for d in answer.json()["data"]]


def norm(v):
    return math.sqrt(sum(x * x for x in v))


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-lfm2", "tiny-llama-f16"])
def test_vectors_equal_the_reference(make_server, server, model):
    golden = Golden(model)
    it = server if model == "tiny-llama" else make_server(model=model)
    for k, prompt in enumerate(golden.json["prompts"]):
        near(golden.tensor(f"prompt{k}.embedding_mean"), vectors(it, prompt["text"])[0], 2e-5)
        near(golden.tensor(f"prompt{k}.embedding_mean_normalized"), vectors(it, prompt["text"], normalize=True)[0], 2e-5)
        near(golden.tensor(f"prompt{k}.embedding_last"), vectors(it, prompt["text"], pooling="last")[0], 3e-4)
        near(golden.tensor(f"prompt{k}.embedding_mean"), vectors(it, prompt["ids"])[0], 2e-5)
        assert embed(it, prompt["text"]).json()["usage"] == {
            "prompt_tokens": len(prompt["ids"]), "completion_tokens": 0, "total_tokens": len(prompt["ids"])}
    if it is not server:
        it.stop()


def test_the_answer_has_openai_s_shape_and_names_the_weights(server):
    answer = embed(server, ["a", "b"], mood="sad")
    body = answer.json()
    assert list(body) == ["object", "data", "model", "usage"]
    assert (body["object"], body["model"]) == ("list", server.model)
    assert [(d["object"], d["index"]) for d in body["data"]] == [("embedding", 0), ("embedding", 1)]
    assert answer.header("X-miLLM-Model") == f'"{server.model}";origin=model;commits=0'
    assert answer.header("X-miLLM-Ignored-Fields") == '"mood"'
    assert answer.header("X-miLLM-Batch") is None


def test_a_list_gives_what_each_entry_gives_alone_to_the_bit(server):
    texts = ["one", "two words", "The river ran low, and then it rose again before the night", "one", "\x00", "😀é"]
    assert vectors(server, texts) == [vectors(server, t)[0] for t in texts]


def test_pooling_and_normalisation(server):
    raw, unit = vectors(server)[0], vectors(server, normalize=True)[0]
    assert abs(norm(unit) - 1) < 1e-5
    near([x / norm(raw) for x in raw], unit, 1e-5)
    assert raw == vectors(server, pooling="mean", normalize=False)[0] == vectors(server, pooling=None)[0]
    first, last = vectors(server, pooling="cls")[0], vectors(server, pooling="last")[0]
    assert first != last
    assert first == vectors(server, "The", pooling="last")[0], "the first token sees only itself"


def test_dimensions_cut_first_and_normalise_then(server):
    whole = vectors(server)[0]
    assert vectors(server, dimensions=8)[0] == whole[:8]
    assert vectors(server, dimensions=len(whole))[0] == whole
    part = vectors(server, dimensions=8, normalize=True)[0]
    near([x / norm(whole[:8]) for x in whole[:8]], part, 1e-6)
    for bad in (0, -1, 1.5, len(whole) + 1, "8", True):
        check_error(embed(server, dimensions=bad), 400, "invalid_parameter", "dimensions")


@pytest.mark.parametrize("dimensions", [None, 1, 2, 3, 4, 5])
def test_base64_is_little_endian_binary32(server, dimensions):
    floats = vectors(server, dimensions=dimensions)[0]
    text = vectors(server, dimensions=dimensions, encoding_format="base64")[0]
    raw = base64.b64decode(text, validate=True)
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == [struct.unpack("f", struct.pack("f", x))[0] for x in floats]


def test_what_input_may_not_be(server):
    for bad in ("", [], [""], ["a", ""], None, 7, {"a": 1}, [None], ["a", [1]], [[1], "a"], [[]], [1.5], [-1], [[1], [-1]], True):
        check_error(embed(server, bad), 400, "invalid_parameter", "input")
    check_error(server.post("/v1/embeddings", {"model": server.model}), 400, "invalid_parameter", "input")
    check_error(embed(server, [10**6]), 400, "invalid_parameter", "input")
    check_error(embed(server, [[1], [10**6]]), 400, "invalid_parameter", "input[1]")
    for fields in ({"pooling": "max"}, {"pooling": 1}, {"normalize": "yes"}, {"encoding_format": "hex"}):
        check_error(embed(server, **fields), 400, "invalid_parameter", next(iter(fields)))


def test_inputs_are_never_cut(server):
    long = "word " * 20000
    error = check_error(embed(server, long), 400, "context_length_exceeded", "input")
    assert "512 tokens" in error["message"]
    error = check_error(embed(server, ["a", long, "b"]), 400, "context_length_exceeded", "input[1]")
    assert "input[1] has" in error["message"]
    error = check_error(embed(server, [long] * 20), 400, "context_length_exceeded", "input[0]")
    assert "input[15] has" in error["message"] and "input[16]" not in error["message"] and error["message"].endswith("and more.")
    assert len(vectors(server, [3] * 512)) == 1


def test_the_limit_of_inputs_is_the_server_s(server, make_server):
    assert len(vectors(server, ["a"] * 128)) == 128
    check_error(embed(server, ["a"] * 129), 400, "invalid_parameter", "input")
    other = make_server(env={"EMBEDDINGS_MAX_INPUTS": "2048", "MAX_CONCURRENT_REQUESTS": "1"})
    assert len(vectors(other, [[5, 6, 7 + i % 300] for i in range(2048)], dimensions=1)) == 2048
    other.stop()


def test_what_cannot_be_honoured_is_refused_by_name(server):
    for fields in ({"seed": 1}, {"logprobs": True}, {"top_logprobs": 1}, {"n": 2}, {"tools": [{}]}, {"logit_bias": {"1": 1}},
                   {"max_completion_tokens": 5}, {"max_tokens": 5}, {"stream": True}, {"allowed_token_ids": [1]},
                   {"response_format": {"type": "json_object"}}, {"steering": {}}, {"profile": "x"}):
        check_error(embed(server, **fields), 400, "field_not_honoured", next(iter(fields)))
    neutral = {"n": 1, "logprobs": False, "tools": [], "logit_bias": {}, "response_format": {"type": "text"}, "seed": None}
    answer = embed(server, **neutral)
    assert answer.status == 200 and answer.header("X-miLLM-Ignored-Fields") is None
    check_error(embed(server, foo=1, headers={"X-miLLM-Strict": "1"}), 400, "unused_fields_refused", "foo")


def test_the_name_decides_before_the_fields(server):
    check_error(server.post("/v1/embeddings", {"model": "nobody", "input": ""}), 404, "model_not_found", "model")
    check_error(server.post("/v1/embeddings", {"input": "a"}), 400, "invalid_parameter", "model")
    check_error(embed(server, headers={"X-miLLM-Load-Policy": "maybe"}), 400, "invalid_parameter", "X-miLLM-Load-Policy")


def test_another_row_is_loaded_unless_the_policy_refuses(make_server):
    server = make_server()
    row = server.register(MODELS / "tiny-qwen2")
    body = {"model": row["name"], "input": TEXT}
    check_error(server.post("/v1/embeddings", body, headers={"X-miLLM-Load-Policy": "refuse"}), 409, "model_not_resident", "model")
    answer = server.post("/v1/embeddings", body)
    assert answer.status == 200 and answer.json()["model"] == row["name"], answer
    server.stop()


def test_vectors_that_are_not_finite_are_an_error_of_their_input(make_server, tmp_path):
    """The row of one token in the embedding is infinite: its input fails, and the others are not told."""
    broken = tmp_path / "broken"
    shutil.copytree(MODELS / "tiny-llama", broken)
    file = broken / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])["model.embed_tokens.weight"]
    width, token = entry["shape"][1], 300
    at = 8 + size + entry["data_offsets"][0] + token * width * 2
    data[at:at + 2] = b"\x80\x7f"  # BF16 infinity
    file.chmod(0o644)
    file.write_bytes(data)
    server = make_server(model=None)
    row = server.register(broken)
    server.load(row["id"])
    server.model = row["name"]
    check_error(embed(server, [[5], [token]]), 500, "embedding_vector_invalid", "input[1]")
    check_error(embed(server, [token]), 500, "embedding_vector_invalid", "input")
    assert embed(server, [5]).status == 200
    server.stop()


def test_clients_that_leave_free_their_slot(make_server):
    server = make_server(env={"MAX_CONCURRENT_REQUESTS": "1", "MAX_PENDING_REQUESTS": "1", "EMBEDDINGS_MAX_INPUTS": "2048"})
    body = json.dumps({"model": server.model, "input": [[3 + (i + k) % 400 for k in range(500)] for i in range(1500)]}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    sock = server.connect()
    sock.sendall(head.encode() + body)
    in_flight = lambda: server.get("/api/health/detailed").json()["inference"]["in_flight"]
    wait_until(lambda: in_flight() > 0)
    sock.close()
    wait_until(lambda: in_flight() == 0)
    assert embed(server).status == 200
    server.stop()
