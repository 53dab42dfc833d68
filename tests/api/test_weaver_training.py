"""Runs over plain HTTP: passes, steps, order, encodings, and every body that is refused."""
import contextlib
import hashlib
import json
import math
import sqlite3
import struct
import threading
import time
import uuid

import pytest
from conftest import MODELS
from weaver_http import ENV, Run, Weaver, datum, error, tokens, trace

PERMANENT = 512  # vocabulary of the tiny models


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server({**ENV, "CAIRN_MAX_PACK_MB": "1"}, model=None)
    server.register(MODELS / "tiny-llama")
    server.register(MODELS / "tiny-llama-untied-rope3")
    return server


@pytest.fixture(scope="module")
def run(w):
    return Run(w, lora_config={"rank": 8, "seed": 7})


def held(w, path, body, **kw):
    """The answer of a small operation that ended while its POST was held: not always the first, on a busy machine."""
    for _ in range(20):
        answer = w.call("POST", path, body(), **{k: v() for k, v in kw.items()})
        if answer.status == 200:
            return answer
        w.wait(answer.json())
    raise AssertionError("no answer was held until the end")


# ---- models ----

def test_a_model_has_its_record(w):
    made = Run(w, lora_config={"rank": 4}, user_metadata={"k": 1}).made
    assert made["lora_config"]["rank"] == 4 and made["lora_config"]["train_mlp"] is True
    assert made["tokenizer_path"] == str(MODELS / "tiny-llama") and made["status"] == "active"
    assert made["user_metadata"] == {"k": 1} and made["training_mode"] == "lora" and made["session_id"] == w.session
    assert w.get(f"/models/{made['id']}")["id"] == made["id"]
    assert w.get(f"/training-runs/{made['id']}")["checkpoints"] == []
    full = Run(w, training_mode="full_ft", lora_config={"rank": 8}).made
    assert full["training_mode"] == "full_ft" and full["lora_config"] is None
    page = w.get("/models?limit=1")
    assert page["items"][0]["id"] == full["id"] and page["pagination"]["total_count"] >= 2


@pytest.mark.parametrize("fields,status,code", [
    ({"base_model": "none"}, 404, "base_model_not_found"), ({"base_model": 5}, 400, "invalid_request"),
    ({"training_mode": "half"}, 400, "invalid_request"), ({"performance_tier": "slow"}, 400, "invalid_request"),
    ({"lora_config": {"rank": 0}}, 400, "invalid_request"), ({"lora_config": {"rank": 100000}}, 400, "invalid_request"),
    ({"lora_config": {"rank": 8, "train_attn": False, "train_mlp": False, "train_unembed": False}}, 400, "invalid_request"),
    ({"lora_config": []}, 400, "invalid_request"), ({"model_seq_id": 0}, 400, "invalid_request"),
    ({"training_max_sequence_length": 1}, 400, "invalid_request"), ({"user_metadata": 1}, 400, "invalid_request")])
def test_a_bad_model_is_refused(w, fields, status, code):
    body = {"model_seq_id": 1, "base_model": "tiny-llama", **fields}
    error(w.call("POST", f"/sessions/{w.session}/models", body), status, code)


def test_a_model_needs_a_session(w):
    error(w.call("POST", f"/sessions/{uuid.uuid4()}/models", {"model_seq_id": 1, "base_model": "tiny-llama"}), 404, "session_not_found")
    error(w.call("GET", f"/models/{uuid.uuid4()}"), 404, "model_not_found")


def test_a_name_may_carry_the_longest_sequence(w):
    run = Run(w, base="tiny-llama:8")
    run.forward([datum(1, 8)])
    error(w.call("POST", run.path + "/forward-passes", run.forward_body([datum(1, 9)])), 400, "context_length_exceeded")
    short = Run(w, training_max_sequence_length=6)
    error(w.call("POST", short.path + "/forward-passes", short.forward_body([datum(1, 7)])), 400, "context_length_exceeded")


# ---- passes ----

def test_a_pass_answers_at_once_with_its_numbers(w, run):
    answer = held(w, run.path + "/forward-passes", lambda: run.forward_body([datum(1), datum(2, 10)], "cross_entropy"))
    envelope = answer.json()
    assert envelope["status"] == "done" and envelope["type"] == "forward" and envelope["model_id"] == run.id
    result, metrics = envelope["response"]["result"], envelope["response"]["metrics"]
    assert result["metrics"] == metrics and "loss_fn_outputs" not in envelope["response"]
    outs = result["loss_fn_outputs"]
    assert [o["logprobs"]["shape"] for o in outs] == [[24], [10]]
    flat = [x for o in outs for x in o["logprobs"]["data"]]
    assert all(x <= 0 for x in flat) and metrics["tokens"] == 34 and metrics["num_datums"] == 2 and metrics["weight:sum"] == 34
    assert math.isclose(metrics["loss"], -sum(flat) / 34, rel_tol=1e-6)
    assert math.isclose(metrics["loss:sum"], -sum(flat), rel_tol=1e-6)
    for o in outs:
        assert [-x for x in o["logprobs"]["data"]] == o["elementwise_loss"]["data"]
    assert w.get(f"/operations/{envelope['id']}") == envelope


def test_numbers_read_back_as_the_same_float(run):
    for x in run.logprobs():
        assert struct.unpack("f", struct.pack("f", x))[0] == float(f"{x:.9g}") or float(f"{x:.9g}") == x


def test_data_keep_their_ids_and_order(run):
    data = [{**datum(i), "datum_id": f"d{i}"} for i in (3, 1, 2)]
    outs = run.forward(data)["result"]["loss_fn_outputs"]
    assert [o["datum_id"] for o in outs] == ["d3", "d1", "d2"]
    assert outs[1]["logprobs"]["data"] == run.logprobs(1)


def test_scalars_are_broadcast_and_ignored_targets_have_no_weight(run):
    one = run.forward([datum(weights={"data": 2.0, "dtype": "float32"})], "cross_entropy")["metrics"]
    assert one["weight:sum"] == 48 and math.isclose(one["loss"], run.forward([datum()], "cross_entropy")["metrics"]["loss"], rel_tol=1e-6)
    d = datum()
    d["loss_fn_inputs"]["target_tokens"]["data"][:3] = [-100] * 3
    got = run.forward([d], "cross_entropy")
    assert got["metrics"]["tokens"] == 21 and got["result"]["loss_fn_outputs"][0]["logprobs"]["data"][:3] == [0, 0, 0]


@pytest.mark.parametrize("key", ["reduction", "aggregation", "loss_agg_mode"])
def test_a_sum_is_not_divided(run, key):
    m = run.forward([datum()], "cross_entropy", **{key: "sum"})["metrics"]
    assert m["loss"] == m["loss:sum"]


def spoil(**changes):
    def make():
        d = datum()
        d["loss_fn_inputs"].update(changes)
        return [d]
    return make


def chunk(**fields):
    return [{"model_input": {"chunks": [fields]}, "loss_fn_inputs": {"target_tokens": [1]}}]


BAD_DATA = [
    (lambda: [], "invalid_datum"), (lambda: [5], "invalid_datum"), (lambda: [{}], "invalid_datum"),
    (lambda: chunk(type="image", tokens=[1]), "unsupported_chunk"),
    (lambda: chunk(type="encoded_text", tokens=[]), "invalid_datum"),
    (lambda: chunk(type="encoded_text", tokens=[PERMANENT]), "token_out_of_range"),
    (lambda: chunk(type="encoded_text", tokens=[-1]), "token_out_of_range"),
    (lambda: chunk(type="encoded_text", tokens=[1.5]), "invalid_datum"),
    (lambda: chunk(type="encoded_text", tokens=["1"]), "invalid_datum"),
    (lambda: chunk(type="encoded_text", tokens=5), "shape_mismatch"),
    (lambda: chunk(type="encoded_text", tokens=[1] * 300000), "context_length_exceeded"),
    (spoil(target_tokens=[1, 2]), "shape_mismatch"), (spoil(target_tokens=1), "shape_mismatch"),
    (spoil(target_tokens=[PERMANENT] * 24), "token_out_of_range"), (spoil(target_tokens=[-5] * 24), "token_out_of_range"),
    (spoil(target_tokens=None), "invalid_datum"), (spoil(weights=[1.0] * 3), "shape_mismatch"),
    (spoil(weights=["x"] * 24), "invalid_datum"), (spoil(weights={"data": [1.0] * 24, "dtype": "bf16"}), "invalid_datum"),
    (spoil(weights=[[1.0] * 24]), "invalid_datum"),
    (spoil(weights={"$tensor": {"format": "raw-tensor", "codec": "raw", "dtype": "float32", "shape": [24], "offset": 0,
                                "size_bytes": 96}}), "invalid_datum"),
    (lambda: [{**datum(), "datum_id": "a"}, {**datum(), "datum_id": "a"}], "invalid_datum"),
    (lambda: [{**datum(), "datum_id": 5}], "invalid_datum"),
    (lambda: [{**datum(), "kind": "sample_ref"}], "unsupported_feature"),
]


@pytest.mark.parametrize("make,code", BAD_DATA)
def test_one_bad_datum_refuses_the_call_and_adds_no_gradient(w, make, code):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    data = make()

    def step_behind_refused_passes():
        for bad in ([data, [datum(), *data]] if data else [data]):
            body = run.backward_body()
            body["payload"]["forward_backward_input"]["data"] = bad
            error(w.call("POST", run.path + "/forward-backward-passes", body), 400, code)
        return run.adam_body()

    # held at most 250 ms, so nobody waited 2 s: a refused call has used its number
    answer = held(w, run.path + "/optimizer-steps", step_behind_refused_passes)
    assert answer.json()["response"]["metrics"]["skipped"] == 1
    w.post(run.path + "/terminate")


@pytest.mark.parametrize("loss,config,code", [
    ("none", {}, "unknown_loss_fn"), (5, {}, "unknown_loss_fn"), ("cross_entropy", {"temperature": 0}, "invalid_request"),
    ("cross_entropy", {"temperature": "x"}, "invalid_request"), ("cross_entropy", {"temperature": 1e39}, "invalid_request"),
    ("cross_entropy", {"reduction": "max"}, "invalid_request"),
    ("ppo_clip", {"clip_low_threshold": 2, "clip_high_threshold": 1}, "invalid_request"),
    ("importance_sampling", {}, "invalid_datum"), ("surrogate", {}, "invalid_datum")])
def test_a_bad_loss_is_refused(w, run, loss, config, code):
    body = error(w.call("POST", run.path + "/forward-passes", run.forward_body([datum()], loss, **config)), 400, code)
    if code == "unknown_loss_fn":
        assert "cross_entropy" in body["details"]["supported"]


def test_forward_logprob_has_no_gradient(w, run):
    error(w.call("POST", run.path + "/forward-backward-passes", run.backward_body([datum()], "forward_logprob")), 400, "invalid_request")


@pytest.mark.parametrize("body", [{}, {"payload": 5}, {"payload": {"seq_id": 0}}, {"payload": {"model_id": "other"}},
                                  {"payload": {"forward_input": 5}}])
def test_a_bad_payload_is_refused(w, run, body):
    error(w.call("POST", run.path + "/forward-passes", body), 400, "invalid_request")


# ---- steps ----

def test_training_lowers_the_loss_and_a_step_tells_its_numbers(w):
    run = Run(w, lora_config={"rank": 8, "seed": 3})
    losses = run.train(5)
    assert losses[-1] < 0.9 * losses[0]
    run.backward()
    got = run.step()
    assert got["step"] == got["metrics"]["step"] == 6 and got["metrics"]["grad_norm"] > 0
    assert got["metrics"]["learning_rate"] == 3e-3 and got["metrics"]["skipped"] == 0


@pytest.mark.parametrize("fields", [{"learning_rate": "x"}, {"beta1": 1}, {"beta2": -0.1}, {"eps": -1}, {"weight_decay": -1}])
def test_bad_adam_parameters_are_refused(w, run, fields):
    error(w.call("POST", run.path + "/optimizer-steps", run.adam_body(**fields)), 400, "invalid_request")


def test_gradients_add_up(w):
    norms = []
    for passes in (1, 2):
        run = Run(w, lora_config={"rank": 4, "seed": 5})
        for _ in range(passes):
            run.backward()
        norms.append(run.step(0.0)["metrics"]["grad_norm"])
    assert math.isclose(norms[1], 2 * norms[0], rel_tol=1e-4)


def test_a_surrogate_has_the_gradient_of_the_loss_it_was_derived_from(w):
    norms = []
    for loss, extra in (("cross_entropy", {}), ("surrogate", {"surrogate_weights": {"data": [-1 / 24] * 24, "dtype": "float32"}})):
        run = Run(w, lora_config={"rank": 4, "seed": 5})
        run.backward([datum(1, 24, **extra)], loss)
        norms.append(run.step(0.0)["metrics"]["grad_norm"])
    assert math.isclose(norms[0], norms[1], rel_tol=1e-5)


# ---- order ----

def test_calls_that_overtake_each_other_run_in_the_order_of_their_numbers(w):
    plain = Run(w, lora_config={"rank": 4, "seed": 9})
    want = [plain.train(1)[0] for _ in range(3)]
    run = Run(w, lora_config={"rank": 4, "seed": 9})
    bodies = []
    for _ in range(3):
        bodies += [("/forward-backward-passes", run.backward_body()), ("/optimizer-steps", run.adam_body())]
    order = [bodies[i] for i in (1, 3, 5, 0, 2, 4)]  # the steps arrive first
    sent = [(path, w.call("POST", run.path + path, body)) for path, body in order]
    got = [w.wait(a.json())["metrics"]["loss"] for path, a in sent if path.startswith("/forward")]
    assert got == want


def test_a_number_whose_predecessor_never_comes_goes_in_after_a_while(w, run):
    body = run.forward_body()
    body["payload"]["seq_id"] = 900
    start = time.monotonic()
    w.wait(w.post(run.path + "/forward-passes", body))
    assert 1.5 < time.monotonic() - start

    def following():
        body["payload"]["seq_id"] += 1
        return body

    held(w, run.path + "/forward-passes", following)


def test_a_predecessor_is_not_waited_for_longer_while_others_work_all_the_time(w):
    run, done = Run(w, lora_config={"rank": 2}), threading.Event()

    def work(other):
        while not done.is_set():
            other.forward()

    others = [threading.Thread(target=work, args=(Run(w, lora_config={"rank": 2}),)) for _ in range(4)]
    for t in others:
        t.start()
    body = run.forward_body()
    body["payload"]["seq_id"] = 900
    try:
        w.wait(w.post(run.path + "/forward-passes", body))
    finally:
        done.set()
        for t in others:
            t.join()


def test_a_second_client_counts_from_one_again(w):
    run = Run(w, lora_config={"rank": 4, "seed": 9})
    run.train(2)
    other = Weaver(w.server).connect()
    twin = Run.__new__(Run)
    twin.w, twin.seq, twin.id, twin.path = other, 0, run.id, run.path
    assert twin.logprobs() == run.logprobs()


def test_a_repeated_step_is_done_once(w):
    run = Run(w, lora_config={"rank": 4, "seed": 9})
    run.backward()
    t, body = trace(), run.adam_body()
    first = w.post(run.path + "/optimizer-steps", body, trace=t)
    again = w.post(run.path + "/optimizer-steps", body, trace=t)
    assert again == first
    run.backward()
    assert run.step()["step"] == 2


def test_a_result_is_kept_once_and_answered_twice(own, w):
    run = Run(w, lora_config={"rank": 2})
    sent = []
    remember = lambda v: sent.append(v) or v
    first = held(w, run.path + "/forward-backward-passes", lambda: remember(run.backward_body([datum(77 + run.seq, 60)])),
                 trace=lambda: remember(trace()))
    again = w.call("POST", run.path + "/forward-backward-passes", sent[-2], trace=sent[-1])
    assert again.status == 200 and first.body == again.body
    numbers = first.json()["response"]["result"]["loss_fn_outputs"][0]["logprobs"]["data"]
    one = "%" + ",".join("%.9g" % v for v in numbers) + "%"
    db = sqlite3.connect(own.state / "cairn.db")
    count = lambda table, column: db.execute(f"SELECT count(*) FROM {table} WHERE {column} LIKE ?", (one,)).fetchone()[0]
    assert count("weaver_operations", "response") == 1 and count("weaver_answers", "body") == 0
    db.close()


def test_a_model_tells_when_it_was_last_asked(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 2})
    assert run.made["last_request_at"] is None
    run.backward()
    first = w.get(run.path)["last_request_at"]
    assert first >= run.made["created_at"] and w.get(run.path)["last_request_at"] == first, "a look is no request"
    run.step()
    made = w.get(run.path)
    assert made["last_request_at"] > first and made["last_seq_id"] == 2
    server.stop()
    server.start()
    after = w.get(run.path)
    assert after["status"] == "lost" and [after[k] for k in ("last_request_at", "last_seq_id")] == [made["last_request_at"], 2]


def test_two_clients_on_one_run_get_their_own_answers(w):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    want = {seed: run.logprobs(seed) for seed in range(1, 9)}
    got = {}

    def ask(seed):
        body = {"payload": {"seq_id": seed, "forward_input": {"loss_fn": "forward_logprob", "data": [datum(seed)]}}}
        got[seed] = w.run(run.path + "/forward-passes", body)["result"]["loss_fn_outputs"][0]["logprobs"]["data"]

    threads = [threading.Thread(target=ask, args=(s,)) for s in want]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert got == want


# ---- packs ----

def pack_of(data):
    """The data with tensors moved into a pack, as the client does it."""
    out, raw = [], b""

    def put(values, dtype):
        nonlocal raw
        body = struct.pack(f"<{len(values)}{'q' if dtype == 'int64' else 'f'}", *values)
        t = {"$tensor": {"format": "raw-tensor", "codec": "raw", "dtype": dtype, "shape": [len(values)], "offset": len(raw),
                         "size_bytes": len(body)}}
        raw += body
        return t

    for d in data:
        chunks = [{"type": "encoded_text", "tokens": put(c["tokens"], "int64")} for c in d["model_input"]["chunks"]]
        inputs = {k: put(v["data"], v["dtype"]) for k, v in d["loss_fn_inputs"].items()}
        out.append({"model_input": {"chunks": chunks}, "loss_fn_inputs": inputs})
    return out, raw


def form(run, data, wire, decoded=None, codec="raw", **facts):
    manifest = {"version": 1, "request": run.forward_body(data),
                "tensor_pack": {"size_bytes": len(wire), "sha256": hashlib.sha256(wire).hexdigest(), "codec": codec,
                                "decoded_size_bytes": len(wire) if decoded is None else decoded, **facts}}
    b = "weaver-" + uuid.uuid4().hex
    body = (f"--{b}\r\nContent-Disposition: form-data; name=\"manifest\"\r\nContent-Type: application/json\r\n\r\n"
            f"{json.dumps(manifest)}\r\n--{b}\r\nContent-Disposition: form-data; name=\"tensor_pack\"; filename=\"pack.bin\"\r\n"
            f"Content-Type: application/octet-stream\r\n\r\n").encode() + wire + f"\r\n--{b}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={b}"}


def send(w, run, *a, **kw):
    body, headers = form(run, *a, **kw)
    return w.call("POST", run.path + "/forward-passes", body, headers=headers)


def test_a_raw_pack_gives_the_numbers_of_json(w, run):
    data = [datum(1, 24, weights={"data": [0.5] * 24, "dtype": "float32"}), datum(2, 9)]
    packed, raw = pack_of(data)
    got = w.wait(send(w, run, packed, raw).json())
    assert got["result"]["loss_fn_outputs"] == run.forward(data)["result"]["loss_fn_outputs"]


def test_the_zstd_pack_of_the_document(w, run):
    frame = bytes.fromhex("28b52ffd0058b500004807002c01000200803f05006000307085" "02b8630058")
    tensor = lambda dtype, n, at, size: {"$tensor": {"format": "raw-tensor", "codec": "raw", "dtype": dtype, "shape": [n],
                                                     "offset": at, "size_bytes": size}}
    data = [{"model_input": {"chunks": [{"type": "encoded_text", "tokens": tensor("int64", 2, 0, 16)}]},
             "loss_fn_inputs": {"target_tokens": tensor("int64", 2, 16, 16), "weights": tensor("float32", 2, 32, 8)}}]
    plain = [{"model_input": {"chunks": [{"type": "encoded_text", "tokens": [7, 300]}]},
              "loss_fn_inputs": {"target_tokens": [300, 2], "weights": [0.0, 1.0]}}]
    got = w.wait(send(w, run, data, frame, 40, "zstd").json())
    assert got["result"]["loss_fn_outputs"] == run.forward(plain)["result"]["loss_fn_outputs"]
    for wire, decoded in ((frame[:-3], 40), (frame, 39), (frame, 41), (frame + frame, 40), (frame + b"x", 40), (b"", 40)):
        error(send(w, run, data, wire, decoded, "zstd"), 400, "tensor_pack_corrupt")


def test_damaged_packs_are_refused(w, run):
    packed, raw = pack_of([datum()])
    for facts in ({"sha256": "0" * 64}, {"size_bytes": len(raw) - 1}, {"codec": "lz4"}, {"decoded_size_bytes": len(raw) + 8},
                  {"sha256": None}, {"decoded_size_bytes": None}):
        error(send(w, run, packed, raw, **{**{}, **facts}), 400, "tensor_pack_corrupt")
    t = packed[0]["loss_fn_inputs"]["target_tokens"]["$tensor"]
    for changes, code in (({"offset": len(raw)}, "tensor_pack_corrupt"), ({"offset": 2**62}, "tensor_pack_corrupt"),
                          ({"offset": -8}, "invalid_datum"), ({"shape": [23]}, "shape_mismatch"),
                          ({"shape": [2**62]}, "shape_mismatch"), ({"shape": [4, 6]}, "shape_mismatch"),
                          ({"dtype": "int8"}, "invalid_datum"), ({"format": "npy"}, "invalid_datum")):
        bad = json.loads(json.dumps(packed))
        bad[0]["loss_fn_inputs"]["target_tokens"]["$tensor"] = {**t, **changes}
        error(send(w, run, bad, raw), 400, code)


def test_a_pack_cannot_be_read_over_and_over(w, run):
    packed, raw = pack_of([datum()])
    error(send(w, run, packed * 2, raw), 400, "tensor_pack_corrupt")


def test_a_pack_that_claims_gigabytes_takes_no_memory(w, run):
    packed, raw = pack_of([datum()])
    error(send(w, run, packed, raw, 2**33, "zstd"), 413, "request_too_large")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(w, run, value):
    d = datum(1, 24, weights={"data": [value] * 24, "dtype": "float32"})
    packed, raw = pack_of([d])
    error(send(w, run, packed, raw), 400, "invalid_datum")


@pytest.mark.parametrize("loss,advantage,fails", [
    ("cispo", 1.0, False), ("truncated_importance_sampling", -1.0, False), ("dro", 1.0, False), ("ppo_clip", 1.0, False),
    ("importance_sampling", 0.0, False), ("importance_sampling", 1.0, True), ("grpo", -1.0, True)])
def test_a_ratio_that_overflows_fails_only_a_loss_that_is_infinite_by_it(w, run, loss, advantage, fails):
    old = {"data": [-1000.0] + [-5.0] * 23, "dtype": "float32"}
    d = datum(1, 24, logprobs=old, advantages={"data": [advantage] * 24, "dtype": "float32"})
    envelope = w.post(run.path + "/forward-backward-passes", run.backward_body([d], loss))
    if fails:
        assert w.wait(envelope, "error")["error"] == "training_failed"
        return
    result = w.wait(envelope)["result"]
    assert all(math.isfinite(x) for x in result["loss_fn_outputs"][0]["elementwise_loss"]["data"])
    metrics = result["metrics"]
    assert math.isfinite(metrics["loss"]) and 1e36 < metrics["ratio"] < 1e38 and 1e36 < metrics["approx_kl"] < 1e38
    assert metrics["logprob_gap:max"] > 900
    norm = run.step()["metrics"]["grad_norm"]
    assert math.isfinite(norm) and (norm > 0) == (advantage != 0)


def test_a_form_without_its_parts_is_refused(w, run):
    head = {"Content-Type": "multipart/form-data; boundary=b"}
    for body in (b"--b\r\nContent-Disposition: form-data; name=\"manifest\"\r\n\r\n{}\r\n--b--\r\n", b"--b--\r\n", b"nothing"):
        error(w.call("POST", run.path + "/forward-passes", body, headers=head), 400, "invalid_request")


# ---- the end ----

def test_a_terminated_model_refuses_work_and_says_so(w):
    run = Run(w, lora_config={"rank": 2})
    got = w.post(run.path + "/terminate", {"instance_types": ["trainer", "inference"]})
    assert set(got) == {"trainer", "inference"} and w.post(run.path + "/terminate")
    assert w.get(run.path)["status"] == "terminated"
    for path, body in (("/forward-passes", run.forward_body()), ("/optimizer-steps", run.adam_body()),
                       ("/checkpoints", {"type": "weight"}), ("/export-sampler", {}), ("/load", {"path": "x"})):
        error(w.call("POST", run.path + path, body), 409, "model_terminated")
    error(w.call("POST", f"/models/{uuid.uuid4()}/terminate"), 404, "model_not_found")
    for bad in (["gpu"], [1], [None], "trainer"):
        error(w.call("POST", Run(w).path + "/terminate", {"instance_types": bad}), 400, "invalid_request")


def test_termination_ends_what_is_queued(w):
    run = Run(w, lora_config={"rank": 8})
    run.seq = 50  # these wait for a predecessor that does not come
    ops = [w.post(run.path + "/forward-backward-passes", run.backward_body()) for _ in range(3)]
    w.post(run.path + "/terminate")
    for op in ops:
        end = w.wait(op, "error")
        assert end["error"] == "model_terminated" and end["error_details"]["operation_id"] == op["id"] and end["retryable"] is False


def test_operations_are_listed(w, run):
    run.forward()
    page = w.get(f"/operations?model_id={run.id}&status=done&limit=2")
    assert len(page["items"]) == 2 and page["pagination"]["total_count"] > 2
    assert all(o["model_id"] == run.id and o["status"] == "done" and "response" not in o for o in page["items"])
    assert w.get("/operations?model_id=none")["items"] == []


def test_an_operation_that_has_begun_is_listed_as_running(w):
    run = Run(w, lora_config={"rank": 8})
    data = [datum(i, 250) for i in range(400)]
    first = w.post(run.path + "/forward-backward-passes", run.backward_body(data))
    second = w.post(run.path + "/forward-backward-passes", run.backward_body(data))
    assert w.get(f"/operations?model_id={run.id}")["items"][0]["status"] == "running"
    page = w.get(f"/operations?model_id={run.id}&status=running")
    assert page["items"][0]["id"] == second["id"] and page["pagination"]["total_count"] == len(page["items"])
    assert w.get(f"/operations?model_id={run.id}&status=pending")["items"] == []
    w.post(run.path + "/terminate")
    assert {w.get(f"/operations/{op['id']}")["status"] for op in (first, second)} <= {"done", "error"}
    assert w.get(f"/operations?model_id={run.id}&status=running")["items"] == []


def test_a_refused_export_has_used_its_number(w):
    run = Run(w, lora_config={"rank": 2})

    def step_behind_a_refused_export():
        for bad in ({"path": "a\n"}, {"ttl_seconds": 0}):
            run.seq += 1
            error(w.call("POST", run.path + "/export-sampler", {"seq_id": run.seq, **bad}), 400, "invalid_name" if "path" in bad else "invalid_ttl")
        return run.adam_body()

    answer = held(w, run.path + "/optimizer-steps", step_behind_a_refused_export)
    assert answer.json()["response"]["metrics"]["skipped"] == 1
    w.post(run.path + "/terminate")


def test_a_list_that_the_database_refuses_is_an_error_and_the_next_one_is_whole(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 2})

    def rename(a, b):
        with contextlib.closing(sqlite3.connect(tmp_path / "cairn.db", timeout=60)) as db, db:
            db.execute(f"ALTER TABLE {a} RENAME TO {b}")

    rename("weaver_models", "aside")
    for _ in range(3):
        w.refused("GET", "/models", None, 500, "internal_error")
        w.refused("GET", run.path, None, 500, "internal_error")
    rename("aside", "weaver_models")
    assert [m["id"] for m in w.get("/models")["items"]] == [run.id] and w.get(run.path)["id"] == run.id
    assert server.stop() == 0


def test_the_base_of_a_run_cannot_be_deleted(own, w):
    row = own.register(MODELS / "tiny-qwen2")["id"]
    run = Run(w, base="tiny-qwen2", lora_config={"rank": 2})
    answer = own.call("DELETE", f"/api/models/{row}")
    assert answer.status == 409 and answer.json()["error"]["code"] == "MODEL_BUSY"
    w.post(run.path + "/terminate")
    assert own.call("DELETE", f"/api/models/{row}").status == 200


def test_other_families_train_too(w):
    run = Run(w, base="tiny-llama-untied-rope3", training_mode="full_ft")
    losses = run.train(3, 1e-3)
    assert losses[-1] < losses[0] and tokens(1)
