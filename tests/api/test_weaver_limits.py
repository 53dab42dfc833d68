"""What one key may have under way, and whose turn is next."""
import contextlib
import sqlite3

import pytest
from conftest import FAULTS, MODELS, needs_faults
from weaver_http import ENV, OTHER_KEY, Run, Weaver, error, tokens, trace


def connect(server):
    server.register(MODELS / "tiny-llama")
    return Weaver(server).connect()


class Paused:
    """A sampling session of a model whose generation is paused: what is asked of it waits."""

    def __init__(self, w):
        self.w = w
        self.run = Run(w, training_mode="full_ft")
        self.path = f"/sampling-sessions/{w.sampler(model_path=self.run.export(path='f'))['id']}"
        w.post(self.path + "/pause-generation", {"mode": "in_place"})

    def body(self, n=3, seed=1):
        return {"prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens(seed, 7)}]},
                "sampling_params": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": n, "seed": seed}}

    def go_on(self):
        self.w.post(self.path + "/continue-generation")


@pytest.fixture
def three(make_server):
    """Three operations a key, and a call waits ten minutes for the one before it."""
    return connect(make_server({**ENV, "CAIRN": str(FAULTS), "WEAVER_MAX_OPERATIONS": "3",
                                "WEIGHTS_TEST_PREDECESSOR_MS": "600000"}, model=None))


@needs_faults
def test_a_key_with_too_many_operations_is_told_to_wait_and_others_are_not(three):
    s = Paused(three)
    ops = [three.post(s.path + "/samples", s.body(), 202) for _ in range(3)]
    again = trace()
    answer = three.call("POST", s.path + "/samples", s.body(), trace=again)
    refused = error(answer, 429, "rate_limited")
    assert refused["retryable"] is True and refused["details"] == {"open": 3, "limit": 3}
    assert int(answer.header("Retry-After")) >= 1
    error(three.call("POST", s.path + "/logprobs", {"prompt": s.body()["prompt"]}), 429, "rate_limited")
    error(three.call("POST", s.run.path + "/forward-passes", s.run.forward_body()), 429, "rate_limited")
    error(three.call("POST", s.run.path + "/checkpoints", {"type": "weight"}), 429, "rate_limited")
    assert [c["checkpoint_type"] for c in s.run.checkpoints()] == ["sampling"]  # nothing is left of the refused one
    other = Weaver(three.server, OTHER_KEY)
    theirs = other.post(s.path + "/samples", s.body(), 202)
    s.go_on()
    for op in (*ops, theirs):
        three.wait(op)
    assert three.call("POST", s.path + "/samples", s.body(), trace=again).status < 300  # the refusal was not kept
    assert s.run.forward()["result"]["loss_fn_outputs"]  # and its number is waited for by nobody


def test_of_two_keys_the_one_with_less_under_way_is_next(make_server):
    w = connect(make_server({**ENV, "MAX_CONCURRENT_REQUESTS": "1"}, model=None))
    s = Paused(w)
    many = [w.post(s.path + "/samples", s.body(60, i))["id"] for i in range(12)]
    one = Weaver(w.server, OTHER_KEY).post(s.path + "/samples", s.body(60, 77))
    s.go_on()
    w.wait(one)
    for op in many:
        w.wait(w.get(f"/operations/{op}"))
    with contextlib.closing(sqlite3.connect(w.server.state / "cairn.db", timeout=60)) as db:
        ends = dict(db.execute("SELECT id, ended_ms FROM weaver_operations WHERE type = 'sample'"))
    before = [op for op in many if ends[op] < ends[one["id"]]]
    assert before in ([], many[:1], many[:2]), "it did not wait behind the twelve that came first"
    assert sorted(many, key=ends.get) == many, "those of one key keep their order"
