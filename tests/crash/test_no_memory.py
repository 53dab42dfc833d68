"""One allocation of a running server fails: the answer is the right one, or says that it is the server that could not; it lives,
and the next request is answered as ever."""
import http.client
import itertools
import json
import mmap
import os
import random
import struct
import subprocess

import crashlab
import pytest
from crashlab import CAIRN, FULL, model_copy, servers, where  # noqa: F401
from test_training_errors import Client, Refused
from weaver_http import KEY

SAMPLE = 100000 if FULL else 120
# The library that reads requests closes the connection of one that it has no memory for.
CLOSED = (ConnectionError, http.client.HTTPException)


def sanitized():
    with open(CAIRN, "rb") as f:
        return b"__asan_init" in f.read() or b"__tsan_init" in f.read()


pytestmark = pytest.mark.skipif(sanitized(), reason="a sanitizer has an allocator of its own")


class Memory:
    def __init__(self, where):  # noqa: F811
        self.library, self.path = where + "/no_memory.so", where + "/no_memory"
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", self.library, os.path.dirname(__file__) + "/no_memory.c"], check=True)
        with open(self.path, "wb") as f:
            f.write(bytes(24))
        with open(self.path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 24)
        self.env = {"LD_PRELOAD": self.library, "NO_MEMORY": self.path}

    def fail(self, number):
        self.map[8:24] = struct.pack("<qq", 0, number)
        self.map[:8] = struct.pack("<q", 1)

    def end(self):
        """How many allocations there were."""
        self.map[:8] = bytes(8)
        return struct.unpack("<q", self.map[8:16])[0]


def each(memory, server, attempt):
    """(number, what attempt() gave while that allocation failed), for a sample of them; afterwards all must be as ever."""
    attempt()
    memory.fail(-1)
    usual = attempt()
    n = memory.end()
    assert n > 20
    for number in sorted(random.Random(1).sample(range(n), min(n, SAMPLE))):
        memory.fail(number)
        try:
            got = attempt()
        except CLOSED:
            got = None
        memory.end()
        assert server.process.poll() is None, (number, server.log_text())
        yield number, got
        assert attempt() == usual, number
    yield None, usual


def check(got, usual):
    status, text = got
    assert status == 200 and text == usual[1] or status >= 500, got


@pytest.mark.parametrize("what", ["chat", "json", "stream"])
def test_an_answer_is_whole_or_an_error(servers, where, what):  # noqa: F811
    memory = Memory(where)
    server = servers(**memory.env)
    body = {"model": server.status()["model"]["name"], "messages": [{"role": "user", "content": "The river"}], "max_tokens": 4,
            "temperature": 0, "logprobs": what == "chat"}
    if what == "json":
        body["response_format"] = {"type": "json_object"}

    def attempt():
        link = http.client.HTTPConnection(server.address, timeout=60)
        try:
            link.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": what == "stream"}),
                         {"Content-Type": "application/json"})
            reply = link.getresponse()
            raw = reply.read()
        finally:
            link.close()
        if reply.status != 200:
            return reply.status, json.loads(raw)["error"]["message"]
        if what != "stream":
            return 200, json.loads(raw)["choices"][0]["message"]["content"]
        frames = [json.loads(f[6:]) for f in raw.split(b"\n\n") if f.startswith(b"data: {")]
        if "error" in frames[-1]:
            return 500, frames[-1]["error"]["message"]
        return 200, "".join(c["delta"].get("content") or "" for f in frames for c in f["choices"])

    gave = list(each(memory, server, attempt))
    usual = gave.pop()[1]
    assert usual[0] == 200
    for _, got in gave:
        if got:
            check(got, usual)
    assert any(got and got[0] >= 500 for _, got in gave)


def test_a_save_is_there_or_not_and_never_without_a_part(servers, where):  # noqa: F811
    memory, steps = Memory(where), itertools.count(1)
    server = servers(**memory.env)
    server.attach()

    def attempt():
        step = next(steps)
        return server.save(step, f"run-{step}")[0]

    for number, status in each(memory, server, attempt):
        assert status in (None, 201) or status >= 500, (number, status)
    crashlab.check_disk(server.checkpoints)
    assert crashlab.leftovers(server.checkpoints) == []


def test_a_load_is_done_or_not_and_the_weights_are_the_same(servers, where):  # noqa: F811
    memory = Memory(where)
    server = servers(**memory.env)
    server.attach()
    assert server.save(1)[0] == 201
    before = server.ask()
    for number, status in each(memory, server, lambda: server.load(path="run/step-000001")[0]):
        assert status in (None, 200) or status >= 500, (number, status)
        assert server.status()["weights_state"] == "clean"
    assert server.ask() == before


@pytest.mark.parametrize("what", ["save", "load", "download"])
def test_the_training_api_says_that_it_has_no_memory(servers, where, what):  # noqa: F811
    memory = Memory(where)
    server = servers(model=None, WEAVER_API_KEYS=f"team:{KEY}", **memory.env)
    status, answer = server.call("POST", "/api/models", {"source": "local", "local_path": model_copy(where, "tiny-llama")})
    assert status == 202, answer
    client = Client(server)

    def attempt():
        try:
            getattr(client, what)()
            return "done"
        except Refused as refused:
            return refused.args[0]

    for number, got in each(memory, server, attempt):
        assert got in (None, "done", "out_of_memory", "internal_error", "busy"), (number, got)
    assert all(c["status"] == "completed" for c in client.run.checkpoints())
    client.fresh.load(client.run.checkpoints()[-1]["path"], True)
