"""What goes wrong in other servers of this API: state that is not restored, calls that count twice, gradients that get lost
between calls, lifetimes (S10, S12, S13, S21 of tests/cases.tsv)."""
import json
import socket
import struct
import time
from datetime import datetime

import pytest
from conftest import MODELS, ROOT, wait_until
from weaver_http import ENV, KEY, Run, Weaver, datum, error, trace

PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3, 4]}]}
MODES = pytest.mark.parametrize("mode", ["lora", "full_ft"])


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server(ENV, model=None)
    server.register(MODELS / "tiny-llama")
    return server


def directory(own, c):
    return own.state / "weaver" / c["model_id"] / c["id"]


def hashes(own, run):
    """sha256 of weights and optimizer state as they are now: equal ones are equal to the bit."""
    files = json.loads((directory(own, run.save("weight_and_optimizer")) / "checkpoint.json").read_text())["files"]
    return {name: f["sha256"] for name, f in files.items() if name.endswith(".safetensors")}


# ---- S10: the optimizer's state

@MODES
def test_the_step_after_a_load_shows_whether_the_optimizer_was_restored(own, w, mode):
    fields = {"training_mode": mode, "lora_config": {"rank": 4, "seed": 3}}
    run = Run(w, **fields)
    run.train(4, 1e-3)
    c = run.save("weight_and_optimizer")
    run.train(1, 1e-3)
    a = hashes(own, run)
    restored, weights_alone = Run(w, **fields), Run(w, **fields)
    restored.load(c["path"], True)
    restored.train(1, 1e-3)
    weights_alone.load(c["path"])
    weights_alone.train(1, 1e-3)
    assert hashes(own, restored) == a and len(a) == (3 if mode == "full_ft" else 2), "weights, moments, masters"
    b = hashes(own, weights_alone)
    assert all(b[name] != a[name] for name in a)


# ---- S12: an answer that got lost

def raw_request(run, route, body, mark):
    text = json.dumps(body).encode()
    return (f"POST /api/v1{run.path}/{route} HTTP/1.1\r\nHost: localhost\r\nX-WEAVER-API-KEY: {KEY}\r\ntraceparent: {mark}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n").encode() + text


def operations(w, run, kind):
    return [o["id"] for o in w.get(f"/operations?model_id={run.id}&limit=100")["items"] if o["type"] == kind]


def lose_the_answer(w, run, route, kind, body, mark):
    """Sends it, and resets the connection when its operation is there."""
    before = operations(w, run, kind)
    sock = w.server.connect()
    sock.sendall(raw_request(run, route, body, mark))
    wait_until(lambda: operations(w, run, kind) != before)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def grad_norm(w, passes):
    run = Run(w, lora_config={"rank": 4, "seed": 5})
    for _ in range(passes):
        run.backward()
    return run.step(0.0)["metrics"]["grad_norm"]


def test_a_call_that_is_sent_again_after_a_lost_answer_counts_once(w):
    once, twice = grad_norm(w, 1), grad_norm(w, 2)
    run = Run(w, lora_config={"rank": 4, "seed": 5})
    for route, kind, body in (("forward-backward-passes", "forward_backward", run.backward_body()),
                              ("optimizer-steps", "optim_step", run.adam_body(0.0))):
        mark = trace()
        lose_the_answer(w, run, route, kind, body, mark)
        got = [w.post(f"{run.path}/{route}", body, trace=mark) for _ in range(2)]
        assert [got[0]["id"]] == operations(w, run, kind) and got[0] == got[1]
    end = w.wait(got[0])
    assert end["step"] == 1 and end["metrics"]["grad_norm"] == once
    # a used number under another trace is another call
    run.seq = 0
    first = run.backward_body()
    ids = {w.post(run.path + "/forward-backward-passes", first, trace=trace())["id"] for _ in range(2)}
    assert len(ids) == 2 and run.step(0.0)["metrics"]["grad_norm"] == pytest.approx(twice, rel=1e-6)


# ---- S13: gradients across calls

@MODES
def test_one_call_of_three_data_is_three_calls_of_one(own, w, mode):
    data = [datum(i, n) for i, n in ((1, 2), (2, 7), (3, 31))]
    runs = [Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 8}) for _ in range(2)]
    runs[0].backward(data, reduction="sum")
    for d in data:
        runs[1].backward([d], reduction="sum")
    norms = [r.step(1e-3)["metrics"]["grad_norm"] for r in runs]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    for seed in (1, 2, 3):
        assert runs[0].logprobs(seed) == pytest.approx(runs[1].logprobs(seed), rel=1e-5)
    # the mean is that of all tokens of the call, not of the data's means
    means = [r["metrics"] for r in [runs[0].forward(data, "cross_entropy"), *(runs[0].forward([d], "cross_entropy") for d in data)]]
    assert means[0]["loss"] == pytest.approx(sum(m["loss:sum"] for m in means[1:]) / 40, rel=1e-6)


@MODES
def test_a_step_uses_the_gradient_up(own, w, mode):
    run = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 8})
    assert run.step()["metrics"]["skipped"] == 1, "nothing to apply yet"
    run.train(1)
    before = hashes(own, run)
    again = run.step()
    assert again["metrics"]["skipped"] == 1 and again["step"] == 1 and hashes(own, run) == before


# ---- S21: lifetimes

def seconds(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def wait_past(end):
    """Past the moment, and past the sweep that follows it."""
    time.sleep(max(0, end + 3 - time.time()))


def made(run, path):
    return next(c for c in run.checkpoints() if c["path"] == path)


def test_lifetimes_of_exports_are_as_they_are_sent(w):
    run = Run(w, lora_config={"rank": 2})
    for i, (fields, ttl) in enumerate((({}, None), ({"ttl_seconds": 3600}, 3600), ({"ttl_seconds": None}, None))):
        c = made(run, run.export(path=f"e{i}", **fields))
        assert c["ttl_seconds"] == ttl and c["type"] == "sampling"
        assert c["expires_at"] is None if ttl is None else seconds(c["expires_at"]) == pytest.approx(seconds(c["created_at"]) + ttl, abs=2e-3)


def test_bad_lifetimes_leave_the_old_one(w):
    run = Run(w, lora_config={"rank": 2})
    c = run.save(name="step-1", ttl_seconds=600)
    for name in ("ttl_negative", "ttl_zero", "ttl_over_year_9999"):
        text = (ROOT / f"tests/vectors/cases/bodies/{name}.json").read_text().replace("{id}", run.id)
        error(w.call("PATCH", run.path + "/checkpoints/ttl", text.encode()), 400, "invalid_ttl")
        assert made(run, c["path"]) == c


def test_an_open_sampler_and_a_changed_lifetime_pass_the_end(own, w):
    run = Run(w, lora_config={"rank": 4, "seed": 6})
    run.train(2)
    moved = run.save(name="moved", ttl_seconds=5)
    w.call("PATCH", run.path + "/checkpoints/ttl", {"path": moved["path"], "ttl_seconds": 3600})
    short = made(run, run.export(path="short", ttl_seconds=5))
    sampler = w.sampler(model_path=short["path"])
    score = lambda: w.run(f"/sampling-sessions/{sampler['id']}/logprobs", {"prompt": PROMPT})["result"]["prompt_logprobs"]
    before = score()
    run.train(2)
    wait_past(seconds(short["expires_at"]))
    error(w.call("POST", f"/sessions/{w.session}/sampling-sessions", {"model_path": short["path"]}), 410, "checkpoint_expired")
    assert not directory(own, short).exists() and score() == before
    wait_past(seconds(moved["expires_at"]))
    assert run.load(moved["path"])["checkpoint_id"] == moved["id"]


def test_lifetimes_end_while_the_server_is_down(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 2})
    short, long, kept = run.save(ttl_seconds=5), run.save(ttl_seconds=600), run.save("weight_and_optimizer")
    sampler = w.sampler(model_path=short["path"])
    server.stop()
    wait_past(seconds(short["expires_at"]))
    server.start()
    w.server = server
    error(w.call("POST", run.path + "/load", {"path": short["path"]}), 410, "checkpoint_expired")
    error(w.call("POST", f"/sampling-sessions/{sampler['id']}/logprobs", {"prompt": PROMPT}), 410, "checkpoint_expired")
    assert [made(run, c["path"]) for c in (long, kept)] == [long, kept] and kept["expires_at"] is None
    run.load(kept["path"], True)
