"""One allocation fails under a request that changes something: an answer of 2xx is whole and the change is there; one that
says that there is no memory has changed nothing. (A connection that just closes says neither.)"""
import itertools
import json
import os
import random
import shutil
import subprocess
import time

import pytest
from crashlab import FULL, OPERATOR, ROOT, model_copy, servers, where  # noqa: F401
from test_no_memory import CLOSED, Memory, pytestmark  # noqa: F401
from test_training_errors import Face
from weaver_http import KEY, Run, Weaver, trace

SAMPLE = 100000 if FULL else 40
LORA = ROOT + "/tests/vectors/golden/tiny-llama/lora"


def each(memory, server, before, act, look):
    """before() makes the state from which act() -> (status, answer) starts; look() tells what act changes."""
    before()
    memory.fail(-1)
    usual, whole = act()
    n = memory.end()
    done = look()
    assert usual < 300 and n > 5
    shown = set(whole) if isinstance(whole, dict) else None
    refused = 0
    for number in sorted(random.Random(2).sample(range(n), min(n, SAMPLE))):
        before()
        untouched = look()
        assert untouched != done, "nothing to see"
        memory.fail(number)
        try:
            status, answer = act()
        except CLOSED:
            status = None
        memory.end()
        assert server.process.poll() is None, (number, server.log_text())
        if status is None:
            assert look() in (untouched, done), number
        elif status < 300:
            assert look() == done, (number, "a success that did nothing")
            assert shown is None or set(answer) == shown, (number, answer)
        else:
            refused += 1
            assert status >= 500, (number, status, answer)
            assert look() == untouched, (number, "an error that did it", answer)
    return refused


class Weights:
    """Requests about the weights, and the way back. `x` changes something; `before_x` makes what it starts from."""

    def __init__(self, server, where):  # noqa: F811
        self.s, self.id, self.path = server, server.rows()[0]["id"], model_copy(where, "tiny-qwen3")
        self.lease = self.client = self.other = None
        self.commits = 0

    def act(self, method, path, body=None, **headers):
        status, answer = self.s.call(method, path, body, **headers)
        return status, answer["data"] if status < 300 else answer

    def must(self, *call, **headers):
        status, data = self.act(*call, **headers)
        assert status < 300, data
        return data

    def post(self, route, body=None):
        return self.act("POST", "/api/weights/" + route, body)

    def model(self, route, body=None, method="POST", **headers):
        return self.act(method, f"/api/models/{self.id}{route}", body, **headers)

    def look(self):
        s = self.s.status()
        row = self.s.done("GET", f"/api/models/{self.id}")
        lease = row["lease"] or {}
        saved = os.path.exists(self.s.checkpoints + "/run/step-000001")
        return {"attached": s["attached"], "quiesced": s["serving"] == "quiesced", "state": s["weights_state"],
                "commits": s["steps_since_load"] - self.commits, "locked": row["locked"], "lease": lease.get("ttl_seconds"),
                "saved": saved, "model": s["model"] and s["model"]["name"], "rows": len(self.s.rows()),
                "adapter": self.s.done("GET", "/api/adapters")["applied"] is not None}

    def let_go(self):
        """Whoever is attached is gone, also one whose id nobody has learned."""
        s = self.s.status()
        self.s.headers.pop("X-miLLM-Attachment", None)
        if s["attached"]:
            self.client.kill()
            while self.s.status()["attachment"]["state"] != "stale":
                time.sleep(0.01)
            self.must("POST", "/api/weights/detach", {"force": True}, Authorization=f"Bearer {OPERATOR}")
        if self.client:
            self.client.kill()
            self.client.wait()
            self.client = None

    # -- the attachment

    def attach(self):
        status, data = self.post("attach", {"pid": self.client.pid})
        if status == 201:
            self.s.headers["X-miLLM-Attachment"] = data["attachment_id"]
        return status, data

    def before_attach(self):
        self.let_go()
        self.client = subprocess.Popen(["sleep", "600"])

    def before_detach(self):
        self.before_attach()
        assert self.attach()[0] == 201

    def detach(self):
        return self.post("detach")

    def before_quiesce(self):
        if (self.s.status()["serving"] == "quiesced"):
            self.must("POST", "/api/weights/resume")
        elif not self.s.status()["attached"]:
            self.before_detach()

    def quiesce(self):
        return self.post("quiesce")

    def before_resume(self):
        self.before_quiesce()
        self.must("POST", "/api/weights/quiesce")

    def resume(self):
        return self.post("resume")

    def before_commit_begin(self):
        if self.s.status()["weights_state"] == "writing":
            self.must("POST", "/api/weights/commit-end")
        if not (self.s.status()["serving"] == "quiesced"):
            self.before_resume()
        self.commits = self.s.status()["steps_since_load"]

    def commit_begin(self):
        return self.post("commit-begin")

    def before_commit_end(self):
        self.before_commit_begin()
        self.must("POST", "/api/weights/commit-begin")

    def commit_end(self):
        return self.post("commit-end")

    def before_save(self):
        if not self.s.status()["attached"]:
            self.before_detach()
        shutil.rmtree(self.s.checkpoints + "/run", ignore_errors=True)

    def save(self):
        """One that says that the checkpoint is there all the same has told what it did."""
        status, answer = self.s.save(1)
        told = status >= 500 and answer.get("error", {}).get("details", {}).get("published")
        return (201, None) if told else (status, answer.get("data"))

    def before_load(self):
        if not os.path.exists(self.s.checkpoints + "/run"):
            self.before_detach()
            assert self.s.save(1)[0] == 201
            self.let_go()
        if self.look()["model"] != "tiny-llama":
            self.must("POST", "/api/weights/load", {"model_id": self.id}, Authorization=f"Bearer {OPERATOR}")

    def load(self):
        return self.act("POST", "/api/weights/load", {"path": "run/step-000001"}, Authorization=f"Bearer {OPERATOR}")

    # -- adapters

    def before_apply(self):
        if self.look()["adapter"]:
            self.must("POST", "/api/adapters/remove")

    def apply(self):
        return self.act("POST", "/api/adapters/apply", {"name": "lora"})

    def before_remove(self):
        self.before_apply()
        assert self.apply()[0] == 200

    def remove(self):
        return self.act("POST", "/api/adapters/remove")

    # -- the row

    def before_lease(self):
        row = self.s.done("GET", f"/api/models/{self.id}")
        if row["lease"]:  # one whose id nobody has learned ends with its model
            self.model("/lease", method="DELETE", **{"X-miLLM-Lease": self.lease or "unknown"})
        if self.s.done("GET", f"/api/models/{self.id}")["lease"]:
            time.sleep(2.1)

    def take(self, ttl=2):
        status, data = self.model("/lease", {"holder": "h", "reason": "r", "ttl_seconds": ttl})
        self.lease = data["lease_id"] if status == 201 else None
        return status, data

    lease_take = take
    before_lease_take = before_lease

    def before_lease_renew(self):
        self.before_lease()
        assert self.take(600)[0] == 201

    def lease_renew(self):
        return self.model("/lease/renew", {"ttl_seconds": 700}, **{"X-miLLM-Lease": self.lease})

    def before_lease_end(self):
        if not self.look()["lease"]:
            assert self.take(600)[0] == 201

    def lease_end(self):
        return self.model("/lease", method="DELETE", **{"X-miLLM-Lease": self.lease})

    def before_lock(self):
        self.must("POST", f"/api/models/{self.id}/unlock")

    def lock(self):
        return self.model("/lock")

    def before_unlock(self):
        if not self.look()["locked"]:
            self.must("POST", f"/api/models/{self.id}/lock")

    def unlock(self):
        return self.model("/unlock")

    def others(self):
        return [r["id"] for r in self.s.rows() if r["id"] != self.id]

    def before_register(self):
        for row in self.others():
            self.must("DELETE", f"/api/models/{row}")

    def register(self):
        return self.act("POST", "/api/models", {"source": "local", "local_path": self.path})

    def before_delete(self):
        if not self.others():
            assert self.register()[0] == 202
        self.other = self.others()[0]

    def delete(self):
        return self.act("DELETE", f"/api/models/{self.other}")

    def before_unload(self):
        if not self.s.status()["model"]:
            self.must("POST", f"/api/models/{self.id}/load")
            self.s.wait_resident()

    def unload(self):
        return self.model("/unload")


@pytest.mark.parametrize("what", ["attach", "detach", "quiesce", "resume", "commit_begin", "commit_end", "save", "load", "apply", "remove",
                                  "lease_take", "lease_renew", "lease_end", "lock", "unlock", "register", "delete", "unload"])
def test_a_change_is_done_and_told_or_refused_and_not_done(servers, where, what):  # noqa: F811
    shutil.copytree(LORA, where + "/adapters/lora")
    memory = Memory(where)
    server = servers(ADAPTER_DIR=where + "/adapters", WEIGHTS_QUIESCE_MAX_HOLD_S="600", **memory.env)
    lab = Weights(server, where)
    try:
        each(memory, server, getattr(lab, "before_" + what), getattr(lab, what), lab.look)
    finally:
        if lab.client:
            lab.client.kill()
            lab.client.wait()


class Training:
    """The same of the training API. An operation that ended in an error counts as one of 500."""

    def __init__(self, server):
        self.w = Weaver(Face(server)).connect()
        self.number = itertools.count(1)
        self.run = Run(self.w, lora_config={"rank": 4, "seed": 1})
        self.saved, self.sampler = None, None

    def ask(self, method, path, body=None):
        answer = self.w.call(method, path, body, trace=trace())
        return answer.status, json.loads(answer.body or b"null")

    def op(self, path, body):
        status, envelope = self.ask("POST", path, body)
        while status < 300 and envelope["status"] in ("pending", "running"):
            status, envelope = self.ask("GET", f"/operations/{envelope['id']}")
        if status < 300 and envelope["status"] == "error":
            return 500, envelope["error"]
        return status, sorted(envelope["response"]) if status < 300 else envelope["error"]

    def look(self):
        """Which runs are active, and which checkpoints there are."""
        runs = [m for m in self.w.get("/models?limit=500")["items"] if m["status"] == "active"]
        return len(runs), [(c["id"], c["expires_at"] is not None) for c in self.run_checkpoints()]

    def run_checkpoints(self):
        return self.w.get(self.run.path + "/checkpoints")["items"]

    def before_create(self):
        for m in self.w.get("/models?limit=500")["items"]:
            if m["status"] == "active" and m["id"] != self.run.id:
                self.w.post(f"/models/{m['id']}/terminate", {})

    def create(self):
        return self.ask("POST", f"/sessions/{self.w.session}/models", {
            "model_seq_id": next(self.number), "base_model": "tiny-llama", "lora_config": {"rank": 4, "seed": 3}})

    def before_terminate(self):
        self.before_create()
        status, self.made = self.create()
        assert status == 201

    def terminate(self):
        return self.ask("POST", f"/models/{self.made['id']}/terminate", {})

    def before_ttl(self):
        if not self.saved:
            self.saved = self.run.save("weight", name="c")
        self.w.call("PATCH", self.run.path + "/checkpoints/ttl", {"path": self.saved["path"], "ttl_seconds": None})

    def ttl(self):
        return self.ask("PATCH", self.run.path + "/checkpoints/ttl", {"path": self.saved["path"], "ttl_seconds": 3600})

    def before_drop(self):
        for c in self.run_checkpoints():
            assert self.ask("DELETE", f"/checkpoints/{c['id']}")[0] == 204
        self.saved = self.run.save("weight", name=f"d{next(self.number)}")

    def drop(self):
        return self.ask("DELETE", f"/checkpoints/{self.saved['id']}")

    def before_keep(self):
        for c in self.run_checkpoints():
            assert self.ask("DELETE", f"/checkpoints/{c['id']}")[0] == 204

    def keep(self):
        return self.op(self.run.path + "/checkpoints", {"type": "weight_and_optimizer", "name": f"k{next(self.number)}"})

    def names(self):
        """How many checkpoints there are; a deleted one has no other trace."""
        return len(self.run_checkpoints())

    # -- sampling sessions: the server keeps those that nobody knows, so only what is told is looked at

    def before_close(self):
        self.sampler = self.w.sampler(sampling_session_seq_id=next(self.number), base_model="tiny-llama")["id"]

    def close(self):
        return self.ask("DELETE", f"/sampling-sessions/{self.sampler}")

    def open(self):
        return self.w.call("GET", f"/sampling-sessions/{self.sampler}").status

    # -- the gradient: a step takes it, and says whether there was one

    def before_pass(self):
        assert self.gradient() in (True, False)

    def gradient(self):
        return not self.w.run(self.run.path + "/optimizer-steps", self.run.adam_body(lr=0))["metrics"]["skipped"]

    def train(self):
        return self.op(self.run.path + "/forward-backward-passes", self.run.backward_body())


@pytest.mark.parametrize("what, look", [("create", "look"), ("terminate", "look"), ("ttl", "look"), ("drop", "names"), ("keep", "names"),
                                        ("close", "open"), ("train", "gradient")])
def test_a_change_of_the_training_api_is_done_and_told_or_not_done(servers, where, what, look):  # noqa: F811
    memory = Memory(where)
    server = servers(model=None, WEAVER_API_KEYS=f"team:{KEY}", **memory.env)
    assert server.call("POST", "/api/models", {"source": "local", "local_path": model_copy(where, "tiny-llama")})[0] == 202
    lab = Training(server)
    before = lab.before_pass if look == "gradient" else getattr(lab, "before_" + what)
    each(memory, server, before, getattr(lab, what), getattr(lab, look))


class Batches:
    """The same of files and batches. A batch waits: serving is paused."""

    LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions",
                       "body": {"model": "tiny-llama", "prompt": "x", "max_tokens": 1}}).encode() + b"\n"

    def __init__(self, server):
        self.face = Face(server)
        self.file = self.batch = None

    def ask(self, method, path, body=None, **headers):
        answer = self.face.call(method, "/v1/" + path, body, headers)
        return answer.status, answer.json()

    def look(self):
        """Files of mine, batches, those that were cancelled."""
        files = [f for f in self.face.call("GET", "/v1/files?purpose=batch").json()["data"] if f["filename"] != "kept"]
        batches = self.face.call("GET", "/v1/batches?limit=100").json()["data"]
        mine = [b for b in batches if b["input_file_id"] == self.file]
        return len(files), len(mine), [b["status"] for b in mine][:1] in (["cancelling"], ["cancelled"])

    def upload(self, name="mine"):
        part = 'Content-Disposition: form-data; name="{}"{}\r\n\r\n'
        body = b"\r\n".join([b"--b", part.format("purpose", "").encode() + b"batch", b"--b",
                             part.format("file", f'; filename="{name}"').encode() + self.LINE, b"--b--", b""])
        return self.ask("POST", "files", body, **{"Content-Type": "multipart/form-data; boundary=b"})

    def before_upload(self):
        for f in self.face.call("GET", "/v1/files?purpose=batch").json()["data"]:
            assert self.ask("DELETE", "files/" + f["id"])[0] == 200

    def before_delete(self):
        self.before_upload()
        self.file = self.upload()[1]["id"]

    def delete(self):
        return self.ask("DELETE", "files/" + self.file)

    def before_create(self):
        self.file = self.upload("kept")[1]["id"]

    def create(self):
        return self.ask("POST", "batches", {"input_file_id": self.file, "endpoint": "/v1/completions", "completion_window": "24h",
                                            "metadata": {"for": "tests"}})

    def before_cancel(self):
        self.before_create()
        status, made = self.create()
        assert status == 200
        self.batch = made["id"]

    def cancel(self):
        return self.ask("POST", f"batches/{self.batch}/cancel", {})


@pytest.mark.parametrize("what", ["upload", "delete", "create", "cancel"])
def test_a_change_of_files_and_batches_is_done_and_told_or_not_done(servers, where, what):  # noqa: F811
    memory = Memory(where)
    server = servers(WEIGHTS_QUIESCE_MAX_HOLD_S="600", WEIGHTS_HEARTBEAT_TIMEOUT_S="600", **memory.env)
    server.attach()
    server.done("POST", "/api/weights/quiesce")
    lab = Batches(server)
    each(memory, server, getattr(lab, "before_" + what), getattr(lab, what), lab.look)


def test_a_request_that_is_repeated_is_never_done_again(servers, where):  # noqa: F811
    memory = Memory(where)
    server = servers(model=None, WEAVER_API_KEYS=f"team:{KEY}", **memory.env)
    assert server.call("POST", "/api/models", {"source": "local", "local_path": model_copy(where, "tiny-llama")})[0] == 202
    lab = Training(server)
    again = trace()
    body = {"model_seq_id": next(lab.number), "base_model": "tiny-llama", "lora_config": {"rank": 4, "seed": 3}}

    def repeat():
        return lab.w.call("POST", f"/sessions/{lab.w.session}/models", body, trace=again)

    first = repeat()
    assert first.status == 201
    runs = lab.look()[0]
    memory.fail(-1)
    assert repeat().body == first.body
    n = memory.end()
    for number in sorted(random.Random(3).sample(range(n), min(n, SAMPLE))):
        memory.fail(number)
        try:
            got = repeat()
        except CLOSED:
            got = None
        memory.end()
        assert got is None or got.status >= 500 or (got.status, got.body) == (201, first.body), (number, got)
        assert lab.look()[0] == runs, (number, got)
