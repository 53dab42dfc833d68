"""A system call under a call of the training API fails (EIO): the answer is done, or says what failed and never that something
is not there; nothing half-made stays, and the next try works."""
import errno
import http.client
import itertools
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import gate
import pytest
from crashlab import FIELDS, judge_at, leftovers, model_copy, places, record, sample, servers, where  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from conftest import Answer  # noqa: E402
from weaver_http import KEY, Run, Weaver, trace  # noqa: E402

pytestmark = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")

# A close that does not happen keeps the descriptor, an unlock that does not happen keeps the lock: no kernel does that.
NEVER_FAIL = {"close", "fcntl"}
# What the server says when a file or its catalogue cannot be read or written. "Not found" would be a lie.
HONEST = {"internal_error", "insufficient_storage", "checkpoint_corrupt"}


class Face:
    """crashlab's server as weaver_http calls it."""

    def __init__(self, server):
        self.server = server

    def call(self, method, path, body=None, headers=None, timeout=60):
        link = http.client.HTTPConnection(self.server.address, timeout=timeout)
        try:
            link.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body).encode(),
                         {"Content-Type": "application/json", **(headers or {})})
            got = link.getresponse()
            return Answer(got.status, got.getheaders(), got.read())
        finally:
            link.close()


class Refused(Exception):
    """The error code of an answer or of an operation."""


class Client:
    def __init__(self, server):
        self.face, self.number = Face(server), itertools.count(1)
        self.w = Weaver(self.face).connect()
        self.run = Run(self.w, lora_config={"rank": 4, "seed": 1})
        self.run.train(1)
        self.saved, self.want = self.run.save("weight_and_optimizer", name="base"), self.run.logprobs()
        self.fresh = Run(self.w, lora_config={"rank": 4, "seed": 2})

    def ask(self, method, path, body=None):
        answer = self.w.call(method, path, body, trace=trace())
        if answer.status >= 300:
            raise Refused(answer.json()["error"])
        return answer.json() if answer.body else None

    def op(self, path, body):
        envelope = self.ask("POST", path, body)
        until = time.monotonic() + 60
        while envelope["status"] in ("pending", "running"):
            assert time.monotonic() < until, envelope
            answer = self.w.call("GET", f"/operations/{envelope['id']}")
            envelope = answer.json() if answer.status == 200 else envelope
        if envelope["status"] != "done":
            raise Refused(envelope["error"])
        return envelope["response"]

    # -- what is tried

    def create(self):
        made = self.ask("POST", f"/sessions/{self.w.session}/models", {
            "model_seq_id": next(self.number), "base_model": "tiny-llama", "lora_config": {"rank": 4, "seed": 3}})
        self.ask("POST", f"/models/{made['id']}/terminate", {})

    def step(self):
        self.op(self.run.path + "/forward-backward-passes", self.run.backward_body())
        self.op(self.run.path + "/optimizer-steps", self.run.adam_body())

    def save(self):
        c = self.op(self.run.path + "/checkpoints", {"type": "weight_and_optimizer", "name": f"c{next(self.number)}"})
        listed = [k for k in self.ask("GET", self.run.path + "/checkpoints")["items"] if k["path"] == c["path"]]
        assert [k["status"] for k in listed] == ["completed"], c

    def load(self):
        self.op(self.fresh.path + "/load", {"path": self.saved["path"], "include_optimizer": True})

    def export(self):
        n = next(self.number)
        path = self.op(self.run.path + "/export-sampler", {"seq_id": n, "path": f"s{n}"})["model_path"]
        made = self.ask("POST", f"/sessions/{self.w.session}/sampling-sessions", {"sampling_session_seq_id": n, "model_path": path})
        if "sync_operation" in made:
            assert self.w.wait(made["sync_operation"])
            made = made["sampling_session"]
        self.op(f"/sampling-sessions/{made['id']}/samples", {
            "seq_id": 1, "num_samples": 1, "sampling_params": {"max_tokens": 2, "seed": 1},
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}})
        self.ask("DELETE", f"/sampling-sessions/{made['id']}")

    def download(self):
        made = self.op(f"/checkpoints/{self.saved['id']}/export", {"format": "huggingface", "merge_adapter": True, "force": True})
        for f in self.ask("GET", f"/artifacts/{made['id']}/download")["files"]:
            try:
                with urllib.request.urlopen(f["url"], timeout=60) as got:
                    assert len(got.read()) == f["size"]
            except urllib.error.HTTPError as refused:
                raise Refused(json.loads(refused.read())["error"]) from None


@pytest.mark.parametrize("what", ["create", "step", "save", "load", "export", "download"])
def test_a_call_whose_system_call_fails_says_so_and_can_be_tried_again(where, servers, what):  # noqa: F811
    server = servers(gated=True, model=None, WEAVER_API_KEYS=f"team:{KEY}")
    status, answer = server.call("POST", "/api/models", {"source": "local", "local_path": model_copy(where, "tiny-llama")})
    assert status == 202, answer
    client = Client(server)
    attempt = getattr(client, what)
    attempt()  # what happens once is behind us
    _, calls = record(server, attempt)
    tried = [p for p in places(where, calls) if p.split()[0] not in NEVER_FAIL]
    assert len(tried) > 20
    failed = 0
    for place in sample(tried, 10 if what in ("step", "export") else 4):  # there the next try may wait 2 s for this one
        judge = judge_at(where, place, errno.EIO)
        server.gate.arm(judge)
        try:
            attempt()
        except Refused as refused:
            failed += 1
            assert refused.args[0] in HONEST, (place, refused)
        server.gate.disarm()
        attempt()
        assert leftovers(where + "/state/weaver") == [], place
    assert failed > 1
    if what == "load":
        assert client.fresh.logprobs() == client.want


def test_a_promotion_that_cannot_read_the_catalogue_does_not_say_that_the_checkpoint_is_gone(where, servers):  # noqa: F811
    server = servers(gated=True, WEAVER_API_KEYS=f"team:{KEY}")
    client = Client(server)

    def promote(step):
        return server.call("POST", "/api/weights/promote", {"checkpoint": client.saved["path"],
                                                            "manifest": {**FIELDS, "run_id": "run", "step": step}})
    (status, answer), calls = record(server, lambda: promote(1))
    assert status == 201, answer
    reads = [p for p in places(where, calls) if "state" in p and p.split()[0] in ("pread64", "openat2", "openat", "fstat")]
    assert reads
    for step, place in enumerate(reads, start=2):
        server.gate.arm(judge_at(where, place, errno.EIO))
        status, answer = promote(step)
        server.gate.disarm()
        assert status == 201 or answer["error"]["code"] in ("INTERNAL_ERROR", "CHECKPOINT_NOT_LOADABLE"), (place, answer)


def test_an_end_that_cannot_be_written_is_told_all_the_same_and_written_later(where, servers):  # noqa: F811
    server = servers(gated=True, model=None, WEAVER_API_KEYS=f"team:{KEY}")
    status, answer = server.call("POST", "/api/models", {"source": "local", "local_path": model_copy(where, "tiny-llama")})
    assert status == 202, answer
    client = Client(server)
    n = itertools.count()

    def full(call):
        """No room for what the database writes after the beginning of the operation."""
        mine = call.name.startswith("pwrite") and call.path and "cairn.db-wal" in call.path
        return errno.ENOSPC if mine and next(n) >= begun else gate.PASS

    begun = sys.maxsize
    server.gate.arm(full)
    client.op(client.run.path + "/optimizer-steps", client.run.adam_body())
    begun, n = next(n) // 2, itertools.count()
    made = client.ask("POST", client.run.path + "/optimizer-steps", client.run.adam_body())
    assert made["status"] == "done", made
    look = f"/operations/{made['id']}"
    assert client.ask("GET", look) == made
    server.gate.disarm()
    until = time.monotonic() + 30
    while made["id"] not in [o["id"] for o in client.ask("GET", "/operations?status=done")["items"]]:
        assert time.monotonic() < until
        time.sleep(0.1)
    server.stop()
    again = servers(model=None, WEAVER_API_KEYS=f"team:{KEY}")
    assert Weaver(Face(again)).call("GET", look).json() == made
