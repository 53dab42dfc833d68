"""What the tests of this folder share: a server on a state directory of its own, also behind a gate, and the judges of what
it leaves on the disk."""
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import gate
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CAIRN = os.environ.get("CAIRN", os.path.join(ROOT, "build", "cairn"))
MODELS = os.path.join(ROOT, "tests/vectors/models")
TOKEN = "crash-test-token-0123456789"
OPERATOR = "operator-test-token-0123456789"
FIELDS = {"domain": "crash", "signal_source": "corpus", "parent": None, "optimizer": {"name": "none", "state": "fresh"}}


@pytest.fixture
def where():
    path = tempfile.mkdtemp(prefix="cairn-crash-", dir="/var/tmp")  # a real disk, not a tmpfs
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def servers(where):
    """servers(**options): another server on `where`; all are ended with the test."""
    made = []

    def start(**options):
        made.append(Server(where, **options))
        return made[-1]

    yield start
    for server in made:
        server.kill()


class Server:
    """`gated`: behind a gate, server.gate. `model`: a folder of tests/vectors/models that is resident after the start."""

    def __init__(self, where, gated=False, model="tiny-llama", program=None, below=(), **env):
        self.where, self.checkpoints = where, where + "/checkpoints"
        env = {**os.environ, "STATE_DIR": where + "/state", "WEIGHTS_CHECKPOINT_DIR": self.checkpoints,
               "WEIGHTS_TOKENS": f"trainer:crash:{TOKEN},operator:ops:{OPERATOR}", **env}
        command = [program or CAIRN, "serve", "--port", "0", "--threads", "2"]
        if model:
            command += ["--model", model_copy(where, model)]
        self.log = open(where + "/log", "ab")
        popen = {"env": env, "stdout": subprocess.PIPE, "stderr": self.log, "text": True, "cwd": where}
        watched = [self.checkpoints, where + "/state", *(f"{where}/{b}" for b in below)]
        self.gate = gate.Gate(command, watched, **popen) if gated else None
        self.process = self.gate.process if gated else subprocess.Popen(command, **popen)
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), self.log_text()
        self.address = line.split("//")[1].strip()
        self.headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        if model:
            self.wait_resident()

    def log_text(self):
        with open(self.where + "/log", errors="replace") as f:
            return f.read()[-4000:]

    def call(self, method, path, body=None, timeout=120, **headers):
        """(status, JSON of the body)."""
        link = http.client.HTTPConnection(self.address, timeout=timeout)
        try:
            link.request(method, path, json.dumps(body) if body is not None else None, {**self.headers, **headers})
            reply = link.getresponse()
            return reply.status, json.loads(reply.read())
        finally:
            link.close()

    def done(self, method, path, body=None, status=200, **headers):
        """The data of an answer that must be the expected one."""
        got, answer = self.call(method, path, body, **headers)
        assert got == status, (got, answer)
        return answer["data"]

    def status(self):
        return self.done("GET", "/api/weights/status")

    def rows(self):
        return self.done("GET", "/api/models")

    def wait_resident(self):
        for _ in range(1500):
            if self.status()["model"]:
                return
            time.sleep(0.02)
        raise AssertionError(f"the model was not loaded: {self.log_text()}")

    def attach(self, **body):
        data = self.done("POST", "/api/weights/attach", body, 201)
        self.headers["X-miLLM-Attachment"] = data["attachment_id"]
        return data

    def save(self, step, run="run", parent=None):
        return self.call("POST", "/api/weights/save", {"manifest": {**FIELDS, "run_id": run, "step": step, "parent": parent}})

    def load(self, **body):
        return self.call("POST", "/api/weights/load", body)

    def ask(self, **fields):
        """Text and log-probabilities of a greedy answer of the resident, whatever its name."""
        name = self.status()["model"]["name"]
        status, answer = self.call("POST", "/v1/completions", {
            "model": name, "prompt": "The river ran low", "max_tokens": 8, "temperature": 0, "logprobs": 1, **fields})
        assert status == 200, answer
        return answer["choices"][0]["text"], answer["choices"][0]["logprobs"]["token_logprobs"]

    def in_background(self, function):
        """Starts function in a thread; .join() gives its result, or None when the connection broke."""
        return Background(function)

    def kill(self):
        self._end(signal.SIGKILL)

    def stop(self):
        """A friendly end."""
        self._end(signal.SIGTERM)
        assert self.process.returncode == 0, (self.process.returncode, self.log_text())

    def _end(self, how):
        if self.log.closed:
            return
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.log.close()
        if self.gate:
            self.gate.close()


class Background:
    def __init__(self, function):
        self.result = None
        self.thread = threading.Thread(target=self._run, args=(function,))
        self.thread.start()

    def _run(self, function):
        try:
            self.result = function()
        except (OSError, http.client.HTTPException):
            pass

    def join(self, seconds=120):
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "no answer"
        return self.result


def back_to_the_base(server, base):
    """The row's own files again, and no row of a checkpoint: so that every load finds the same catalogue."""
    status, answer = server.load(model_id=base)
    assert status == 200, answer
    for row in server.rows():
        if row["checkpoint"]:
            server.done("DELETE", f"/api/models/{row['id']}")


def model_copy(where, name):
    to = f"{where}/{name}"
    if not os.path.exists(to):
        shutil.copytree(f"{MODELS}/{name}", to)
    return to


# ---- calls, whatever run, step and random name they are about ----

class Place:
    """Where in an operation a call stands: what it does to which file, and how often it did before."""

    def __init__(self, where):
        self.where, self.seen = where, {}

    def of(self, call):
        what = " ".join([call.name + ("+" if call.creates else "")] + [self.plain(p) for p in (call.path, call.to) if p])
        self.seen[what] = self.seen.get(what, 0) + 1
        return f"{what} ({self.seen[what]})"

    def plain(self, path):
        path = path.replace(self.where + "/", "")
        path = re.sub(r"step-\d+", "STEP", path)
        path = re.sub(r"-[0-9a-f]{8}-[0-9a-f]{8}", "", path)
        path = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|file-[0-9a-f]+", "ID", path)
        return re.sub(r"^checkpoints/[^/.][^/]*", "checkpoints/RUN", path)


def places(where, calls):
    """The places of recorded calls, in order."""
    place = Place(where)
    return [place.of(call) for call in calls]


def judge_at(where, target, answer):
    """A judge that answers once at a place and passes all others; judge.met tells whether it got there."""
    place = Place(where)

    def judge(call):
        if place.of(call) != target or judge.met:
            return gate.PASS
        judge.met = call
        return answer

    judge.met = None
    return judge


def reached(judge, place):
    """The operation came to its place. The catalogue is also looked at by who tends to batches, now and then: such a call may
    stand in the recording and be missing another time."""
    return judge.met is not None or "cairn.db" in place


def record(server, function):
    """(result, calls) of an operation that nothing disturbs."""
    server.gate.arm()
    result = function()
    return result, server.gate.disarm()


FULL = os.environ.get("CRASH_MATRIX") == "full"


def sample(rows, every):
    """All of them in the full matrix, else every so many, the first and the last always."""
    return list(rows) if FULL else [r for i, r in enumerate(rows) if i % every == 0 or i == len(rows) - 1]


# ---- what is on the disk ----

def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def steps(run):
    return sorted(e for e in os.listdir(run) if e.startswith("step-")) if os.path.isdir(run) else []


def problem_of(step_dir):
    """Why a step directory is not whole; None when it is."""
    companions = os.listdir(f"{MODELS}/tiny-llama")
    try:
        with open(step_dir + "/manifest.json", "rb") as f:
            manifest = json.load(f)
        if sha256(step_dir + "/model.safetensors") != manifest["weights_sha256"]:
            return "the hash is not the manifest's"
        for name in companions:
            with open(f"{step_dir}/{name}", "rb") as f, open(f"{MODELS}/tiny-llama/{name}", "rb") as original:
                text = f.read()
                if name.endswith(".json"):
                    json.loads(text)
                if name.startswith("tokenizer") and text != original.read():
                    return f"{name} is not the model's"
    except (OSError, ValueError, KeyError) as problem:
        return repr(problem)
    return None


def check_disk(checkpoints, must_have=()):
    """Every step is whole or absent, every `latest` names a whole one; returns {run: steps}."""
    found = {}
    for run in sorted(os.listdir(checkpoints)) if os.path.isdir(checkpoints) else []:
        at = f"{checkpoints}/{run}"
        if run.startswith(".") or not os.path.isdir(at):
            continue
        found[run] = steps(at)
        for step in found[run]:
            assert problem_of(f"{at}/{step}") is None, f"{at}/{step}: {problem_of(f'{at}/{step}')}"
        if os.path.lexists(at + "/latest"):
            assert os.readlink(at + "/latest") in found[run], f"latest of {run} names {os.readlink(at + '/latest')}"
    for run, step in must_have:
        assert step in found.get(run, []), f"{run}/{step} was acknowledged and is gone"
    return found


def leftovers(checkpoints):
    return [os.path.join(d, n) for d, dirs, files in os.walk(checkpoints) for n in dirs + files if n.startswith(".tmp-")]
