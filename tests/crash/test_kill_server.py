"""The server is killed with SIGKILL at random moments of saves: a step is whole or absent, `latest` names a whole one, the
next start cleans up, and the same step can be saved again."""
import hashlib
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CAIRN = os.environ.get("CAIRN", os.path.join(ROOT, "build", "cairn"))
TOKEN = "crash-test-token-0123456789"


class Server:
    def __init__(self, where):
        self.where = where
        env = dict(os.environ, STATE_DIR=where + "/state", WEIGHTS_CHECKPOINT_DIR=where + "/checkpoints",
                   WEIGHTS_TOKENS=f"trainer:crash:{TOKEN}")
        self.log = open(where + "/log", "ab")
        self.process = subprocess.Popen([CAIRN, "serve", "--port", "0"], env=env, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), open(where + "/log").read()
        self.address = line.split("//")[1].strip()
        self.headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def call(self, method, path, body=None):
        link = http.client.HTTPConnection(self.address, timeout=60)
        try:
            link.request(method, path, json.dumps(body) if body is not None else None, self.headers)
            reply = link.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            link.close()

    def make_resident(self, model):
        status, answer = self.call("GET", "/api/models")
        rows = answer["data"]
        if not rows:
            status, answer = self.call("POST", "/api/models", {"source": "local", "local_path": model, "custom_name": "tiny"})
            assert status == 202, answer
            rows = [answer["data"]]
        row = next(r for r in rows if r["name"] == "tiny")
        status, answer = self.call("POST", f"/api/models/{row['id']}/load", {})
        assert status == 202, answer
        for _ in range(500):
            if self.call("GET", f"/api/models/{row['id']}")[1]["data"]["status"] == "loaded":
                return
            time.sleep(0.02)
        raise AssertionError("the model was not loaded")

    def attach(self):
        status, answer = self.call("POST", "/api/weights/attach", {})
        assert status == 201, answer
        self.headers["X-miLLM-Attachment"] = answer["data"]["attachment_id"]

    def save(self, step):
        return self.call("POST", "/api/weights/save", {"manifest": {
            "run_id": "run", "step": step, "domain": "crash", "signal_source": "corpus", "parent": None,
            "optimizer": {"name": "none", "state": "fresh"}}})

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()
        self.log.close()


@pytest.fixture
def where():
    path = tempfile.mkdtemp(prefix="cairn-crash-", dir="/var/tmp")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def whole(step_dir):
    """Every file is there and the hash of the manifest is the file's."""
    with open(step_dir + "/manifest.json") as f:
        manifest = json.load(f)
    with open(step_dir + "/model.safetensors", "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    return digest == manifest["weights_sha256"] and os.path.exists(step_dir + "/config.json")


def steps(run):
    return sorted(e for e in os.listdir(run) if e.startswith("step-"))


def test_a_save_killed_at_twenty_random_moments_is_whole_or_absent(where):
    model = where + "/tiny-llama"
    shutil.copytree(ROOT + "/tests/vectors/models/tiny-llama", model)
    run, rng, step, killed_inside = where + "/checkpoints/run", random.Random(20261129), 0, 0
    server = Server(where)
    server.make_resident(model)
    server.attach()
    began = time.monotonic()
    assert server.save(step)[0] == 201
    took = time.monotonic() - began
    for _ in range(20):
        step += 1
        answered = []
        saver = threading.Thread(target=lambda n=step: quietly(lambda: answered.append(server.save(n)[0])))
        saver.start()
        time.sleep(rng.uniform(0, took * 1.3))
        server.kill()
        saver.join()
        killed_inside += not answered
        for name in steps(run):
            assert whole(f"{run}/{name}"), name
        assert whole(f"{run}/{os.readlink(run + '/latest')}")
        if answered == [201]:
            assert os.path.isdir(f"{run}/step-{step:06d}"), "an acknowledged save is gone"
        server = Server(where)
        assert [e for e in os.listdir(run) if e.startswith(".tmp-")] == []
        server.make_resident(model)
        server.attach()
        status, answer = server.save(step)
        if status == 409:
            assert answer["error"]["code"] == "CHECKPOINT_EXISTS"
            assert whole(f"{run}/step-{step:06d}")
        else:
            assert status == 201, answer
            assert os.readlink(run + "/latest") == f"step-{step:06d}"
    server.stop()
    assert killed_inside >= 5, f"only {killed_inside} of 20 kills came before the answer"


def quietly(function):
    try:
        function()
    except (OSError, http.client.HTTPException):
        pass
