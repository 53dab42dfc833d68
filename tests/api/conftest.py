"""A running `cairn serve` for the tests of this folder, and the few words they speak to it.

The program is $CAIRN (default build/cairn). Every server has a state directory of its own, port 0 and the token
TRAINER; models come from tests/vectors/models. Standard library and pytest only.
"""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from pathlib import Path

import pytest
from weaver_http import Weaver

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(os.environ.get("CAIRN_FAULTS", ROOT / "build/cairn-faults"))  # what reads the WEIGHTS_TEST_* variables
needs_faults = pytest.mark.skipif(not FAULTS.exists(), reason="no test build (make faults)")
MODELS = ROOT / "tests/vectors/models"
CASES = ROOT / "tests/vectors/cases"
TRAINER = "trainer-token-for-tests"
OPERATOR = "operator-token-for-tests"
START_SECONDS = 120


def wait_until(check, tell=lambda: "", seconds=120):
    """The first true value of check(); tell() goes into the failure. The time is for a machine that is busy with other
    things, not a claim."""
    until = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < until, f"it did not happen in time {tell()}"
        time.sleep(0.01)
    return value


@contextlib.contextmanager
def refusing_writes(server, what):
    """Meanwhile the database refuses `what`, "INSERT ON files" for one, as it does when the disk is full."""
    def run(sql):
        with contextlib.closing(sqlite3.connect(server.state / "cairn.db", timeout=60)) as db, db:
            db.execute(sql)
    run(f"CREATE TRIGGER no_room BEFORE {what} BEGIN SELECT RAISE(ABORT, 'there is no room'); END")
    try:
        yield
    finally:
        run("DROP TRIGGER no_room")


class Answer:
    """Status, headers (any case) and body of one answer."""

    def __init__(self, status, headers, body):
        self.status, self.body = status, body
        self.headers = {k.lower(): v for k, v in headers}

    def header(self, name):
        return self.headers.get(name.lower())

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:300]!r}>"


class Server:
    """One process; `model` is the name of what is loaded."""

    def __init__(self, tmp, env=None, args=()):
        self.state = Path(tmp)
        self.checkpoints = self.state / "checkpoints"
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.model, self.row = None, None
        self.env = {
            **os.environ,
            "STATE_DIR": str(self.state),
            "WEIGHTS_CHECKPOINT_DIR": str(self.checkpoints),
            "WEIGHTS_TOKENS": f"trainer:forge:{TRAINER},operator:ops:{OPERATOR}",
            "ALLOWED_HOSTS": "server.example",
            "WEIGHTS_QUIESCE_MAX_HOLD_S": "60",  # not by itself, on a machine that is busy with other things
            **(env or {}),
        }
        self.args = list(args)
        self.start()

    def start(self):
        program = self.env.get("CAIRN", str(ROOT / "build/cairn"))
        self.log = open(self.state / "server.log", "ab")
        self.process = subprocess.Popen([program, "serve", "--port", "0", *self.args], env=self.env, cwd=ROOT,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        timer = threading.Timer(START_SECONDS, self.process.kill)
        timer.start()
        for line in self.process.stdout:
            found = re.search(r"listening on http://(\S+):(\d+)", line)
            if found:
                self.host, self.port = found[1].strip("[]"), int(found[2])
                break
        else:
            raise RuntimeError(f"the server did not start:\n{self.log_text()[-3000:]}")
        timer.cancel()

    def log_text(self):
        self.log.flush()
        return (self.state / "server.log").read_text(errors="replace")

    def stop(self, how=signal.SIGTERM, seconds=120):
        """The exit status; an unfriendly end fails the test that asked for a friendly one."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.log.close()

    # -- talking

    def call(self, method, path, body=None, headers=None, timeout=120):
        """body: bytes go as they are, anything else as JSON."""
        head = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            head.setdefault("Content-Type", "application/json")
        conn = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            conn.request(method, path, body, head)
            got = conn.getresponse()
            return Answer(got.status, got.getheaders(), got.read())
        finally:
            conn.close()

    def get(self, path, **kw):
        return self.call("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.call("POST", path, {} if body is None else body, **kw)

    def weights(self, route, body=None, attachment=None, token=TRAINER):
        """POST /api/weights/<route> with a token."""
        headers = {"Authorization": f"Bearer {token}"}
        if attachment:
            headers["X-miLLM-Attachment"] = attachment
        return self.post(f"/api/weights/{route}", {} if body is None else body, headers=headers)

    def connect(self, timeout=60):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    # -- models

    def register(self, directory, **fields):
        answer = self.post("/api/models", {"source": "local", "local_path": str(directory), **fields})
        assert answer.status == 202, answer
        return answer.json()["data"]

    def settled(self, row):
        """The model's row when its load has ended, well or badly."""
        def look():
            data = self.get(f"/api/models/{row}").json()["data"]
            return data["status"] in ("loaded", "error") and data
        return wait_until(look)

    def load(self, row):
        answer = self.post(f"/api/models/{row}/load")
        assert answer.status == 202, answer
        data = self.settled(row)
        assert data["status"] == "loaded", data
        return data

    def register_and_load(self, name):
        """A model of tests/vectors/models by its folder's name."""
        row = self.register(MODELS / name)
        self.load(row["id"])
        self.model, self.row = row["name"], row["id"]
        return row

    # -- /v1

    def complete(self, prompt="The river ran low", headers=None, **fields):
        return self.post("/v1/completions", {"model": self.model, "prompt": prompt, **fields}, headers=headers)

    def chat(self, text="The river ran low", headers=None, **fields):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        return self.post("/v1/chat/completions", {"model": self.model, "messages": messages, **fields}, headers=headers)

    def stream(self, path, body, headers=None):
        """(answer, chunks) of a stream, judged frame by frame."""
        answer = self.post(path, {"model": self.model, **body, "stream": True}, headers=headers)
        assert answer.status == 200, answer
        assert answer.header("Content-Type") == "text/event-stream"
        frames = answer.body.split(b"\n\n")
        assert frames.pop() == b"", "a blank line after the last frame"
        assert frames.pop() == b"data: [DONE]", frames[-1:]
        assert all(f.startswith(b"data: ") and b"\n" not in f for f in frames), frames
        return answer, [json.loads(f[6:].decode("utf-8")) for f in frames]


@pytest.fixture(scope="session")
def make_server(tmp_path_factory):
    """make_server(env, args): another server, ended with the session at the latest."""
    made = []

    def make(env=None, args=(), model="tiny-llama", state=None):
        server = Server(state or tmp_path_factory.mktemp("state"), env, args)
        made.append(server)
        if model:
            server.register_and_load(model)
        return server

    yield make
    for server in made:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="session")
def server(make_server):
    """The shared one, with tiny-llama loaded. Tests leave it as they found it."""
    return make_server()


def check_error(answer, status, code=None, param=None):
    """The error shape of /v1; returns the error object."""
    assert answer.status == status, answer
    error = answer.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["type"] in ("invalid_request_error", "server_error")
    assert (error["type"] == "server_error") == (status >= 500)
    if code:
        assert error["code"] == code, error
    if param:
        assert error["param"] == param, error
    if status == 503:
        assert int(answer.header("Retry-After")) >= 1
    return error


@pytest.fixture(scope="module")
def w(own):
    """The training API of `own`, the server that a module makes for itself."""
    return Weaver(own).connect()
