"""/v1/chat/completions and its streams (7.3, 7.4, S22 to S24, S26)."""
import math
import re

import pytest
from conftest import check_error
from golden import Golden, near


@pytest.fixture(scope="module")
def golden():
    return Golden("tiny-llama")


def content(answer, i=0):
    assert answer.status == 200, answer
    return answer.json()["choices"][i]["message"]["content"]


def hot(**fields):
    return {"temperature": 1.5, "max_tokens": 24, **fields}


def chat_stream(server, text="The river ran low", **fields):
    return server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})


def joined(chunks, index=0):
    return "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def test_an_answer_has_its_shape_and_headers(server):
    answer = server.chat(max_tokens=4)
    body = answer.json()
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", body["id"]) and body["object"] == "chat.completion"
    message = body["choices"][0]["message"]
    assert message["role"] == "assistant" and isinstance(message["content"], str)
    assert answer.header("X-miLLM-Batch") == "1"
    assert server.chat(max_tokens=1).json()["id"] != body["id"]


def test_prompts_have_the_tokens_of_the_reference_template(server, golden):
    for case in golden.json["chat"]:
        if case["add_generation_prompt"]:
            answer = server.chat(case["messages"], max_tokens=1, temperature=0)
            assert answer.json()["usage"]["prompt_tokens"] == len(case["ids"])


def test_a_trailing_assistant_message_is_continued(server):
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The river ran"}]
    longer = server.chat(talk + [{"role": "user", "content": "x"}], max_tokens=1).json()["usage"]["prompt_tokens"]
    shorter = server.chat(talk, max_tokens=1).json()["usage"]["prompt_tokens"]
    closed = server.chat(talk[:1], max_tokens=1).json()["usage"]["prompt_tokens"]
    assert closed < shorter < longer


def test_text_parts_are_joined_and_developer_is_system(server):
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert content(server.chat(parts, temperature=0, max_tokens=8)) == content(server.chat("ab", temperature=0, max_tokens=8))
    talk = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert content(server.chat(talk, temperature=0, max_tokens=8)) == content(server.chat(system, temperature=0, max_tokens=8))


def test_extra_conversations_are_further_choices(server):
    other = [{"role": "user", "content": "Count to three"}]
    answer = server.chat(extra_messages=[other], temperature=0, max_tokens=12)
    assert answer.header("X-miLLM-Batch") == "2"
    assert content(answer, 0) == content(server.chat(temperature=0, max_tokens=12))
    assert content(answer, 1) == content(server.chat(other, temperature=0, max_tokens=12))
    check_error(server.chat(extra_messages=[other], stream=True), 400, "invalid_parameter", "extra_messages")


def test_a_stream_has_its_chunks_in_order(server):
    answer, chunks = chat_stream(server, max_tokens=8)
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", chunks[0]["id"])
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk" and chunk["model"] == server.model
        assert chunk["id"] == chunks[0]["id"] and chunk["created"] == chunks[0]["created"]
        assert "system_fingerprint" not in chunk and not has_null(chunk)
    deltas = [c for chunk in chunks for c in chunk["choices"]]
    assert deltas[0]["delta"] == {"role": "assistant"} and deltas[-1]["delta"] == {}
    assert deltas[-1]["finish_reason"] in ("stop", "length")
    assert all("content" in d["delta"] for d in deltas[1:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["millm_model"] == answer.header("X-miLLM-Model")
    assert sum("millm_model" in c for c in chunks) == 1
    assert answer.header("Content-Length") is None


def has_null(v):
    if isinstance(v, dict):
        return any(x is None or has_null(x) for x in v.values())
    return isinstance(v, list) and any(map(has_null, v))


@pytest.mark.parametrize("fields", [{"temperature": 0, "max_tokens": 64}, hot(seed=3, max_tokens=64), hot(seed=4, n=3),
                                    hot(seed=5, temperature=2, max_tokens=150)], ids=str)
def test_the_joined_stream_is_the_plain_answer(server, fields):
    plain = server.chat(**fields).json()
    _, chunks = chat_stream(server, **fields)
    for choice in plain["choices"]:
        assert joined(chunks, choice["index"]) == choice["message"]["content"]
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]
                   if c["index"] == choice["index"] and "finish_reason" in c]
        assert reasons == [choice["finish_reason"]]


@pytest.mark.parametrize("fields", [{"temperature": 0, "max_tokens": 9}, hot(seed=5), hot(seed=5, n=2), {"temperature": 0, "stop": "e"}], ids=str)
def test_usage_stands_where_clients_look_for_it(server, fields):
    plain = server.chat(**fields).json()["usage"]
    for options in (None, {}, {"include_usage": False}):
        _, chunks = chat_stream(server, stream_options=options, **fields)
        having = [c for c in chunks if "usage" in c]
        assert len(having) == 1 and having[0]["choices"][0]["finish_reason"] and having[0]["usage"] == plain
    _, chunks = chat_stream(server, stream_options={"include_usage": True}, **fields)
    having = [c for c in chunks if "usage" in c]
    assert having == [chunks[-1]] and having[0]["choices"] == [] and having[0]["usage"] == plain


def test_a_stop_across_two_deltas_never_appears_in_a_stream(server):
    _, chunks = chat_stream(server, temperature=0, max_tokens=64)
    pieces = [c["delta"]["content"] for chunk in chunks for c in chunk["choices"] if c["delta"].get("content")]
    whole, at, tried = "".join(pieces), 0, 0
    for a, b in zip(pieces, pieces[1:]):
        at += len(a)
        stop = a[-1] + b[0]
        if "\ufffd" in stop or whole.find(stop) != at - 1:
            continue
        tried += 1
        for value in (stop, ["\x01never", stop]):
            assert content(server.chat(temperature=0, max_tokens=64, stop=value)) == whole[:at - 1]
            assert joined(chat_stream(server, temperature=0, max_tokens=64, stop=value)[1]) == whole[:at - 1]
        never = stop + "\x01\x02"
        assert joined(chat_stream(server, temperature=0, max_tokens=64, stop=never)[1]) == whole
        if tried == 5:
            break
    assert tried


def test_log_probabilities_of_every_token_plain_and_streamed(server):
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 12, "temperature": 0}
    body = server.chat(**fields).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"]
    for e in entries:
        values = [t["logprob"] for t in e["top_logprobs"]]
        assert len(values) == 3 and values == sorted(values, reverse=True) and sum(map(math.exp, values)) <= 1.0001
        assert e["top_logprobs"][0]["bytes"] == e["bytes"] and e["logprob"] == values[0]
    assert content(server.chat(max_tokens=12, temperature=0)) == body["choices"][0]["message"]["content"]
    _, chunks = chat_stream(server, **fields)
    streamed = [e for chunk in chunks for c in chunk["choices"] for e in c.get("logprobs", {}).get("content", [])]
    assert streamed == entries


def test_bytes_are_the_tokens_true_bytes(server, golden):
    answer = server.chat(logprobs=True, top_logprobs=20, max_tokens=1, temperature=0, return_tokens_as_token_ids=True)
    for t in answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
        token = int(re.fullmatch(r"token_id:(\d+)", t["token"])[1])
        assert bytes(t["bytes"]) == golden.vocab.bytes[token]


def test_one_token_of_an_allowed_set(server, golden):
    ids = [i for i in sorted(golden.vocab.bytes) if i not in golden.vocab.special][40:43]
    choice = server.chat(allowed_token_ids=ids, max_tokens=1, temperature=0).json()["choices"][0]
    assert choice["logprobs"] is None
    assert choice["message"]["content"] in [golden.vocab.decode([i]) for i in ids]
    answer = server.chat(allowed_token_ids=ids, logprobs=True, top_logprobs=3, max_tokens=1, temperature=0, return_tokens_as_token_ids=True)
    top = answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert sorted(t["token"] for t in top) == sorted(f"token_id:{i}" for i in ids)
    near([1.0], [sum(math.exp(t["logprob"]) for t in top)], 1e-4)


def test_top_logprobs_need_logprobs(server):
    check_error(server.chat(top_logprobs=2), 400, "invalid_parameter", "top_logprobs")


def test_refusals_of_a_stream_are_plain_errors(server):
    for body, status, code in (({"model": "no-such"}, 404, "model_not_found"), ({"temperature": 9}, 400, "invalid_parameter"),
                               ({"messages": [{"role": "user", "content": "word " * 20000}]}, 400, "context_length_exceeded")):
        plain = {"model": server.model, "messages": [{"role": "user", "content": "a"}], "stream": True}
        answer = server.post("/v1/chat/completions", {**plain, **body})
        assert answer.header("Content-Type") == "application/json"
        check_error(answer, status, code)


def test_an_answer_that_takes_longer_than_the_limit_ends_with_timeout(make_server):
    server = make_server({"CAIRN_REQUEST_TIMEOUT_S": "0.001"})
    fields = {"max_tokens": 400, "logit_bias": {"2": -100}, "temperature": 0}
    got = server.chat([{"role": "user", "content": "a"}], **fields).json()
    assert got["choices"][0]["finish_reason"] == "timeout"
    assert 1 <= got["usage"]["completion_tokens"] < 400
    got = server.complete("a", **fields, n=2).json()
    assert [c["finish_reason"] for c in got["choices"]] == ["timeout", "timeout"]
    _, chunks = server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], **fields})
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"] and c["choices"][0].get("finish_reason")] == ["timeout"]
    assert server.get("/api/health/detailed").json()["inference"]["in_flight"] == 0
    assert server.stop() == 0
