"""A trainer as a second process would be one: attaches, maps the shared weights with numpy, commits."""
import hashlib
import json
import struct

import numpy as np
from conftest import TRAINER

FIELDS = {"domain": "tests", "signal_source": "corpus", "parent": None,
          "optimizer": {"name": "adamw", "state": "fresh"}}


def granted(answer, status=200):
    assert answer.status == status, answer
    body = answer.json()
    assert body["success"] is True and body["error"] is None
    return body["data"]


def refused(answer, status, code, **details):
    assert answer.status == status, answer
    body = answer.json()
    assert sorted(body) == ["data", "error", "success"] and body["success"] is False and body["data"] is None
    error = body["error"]
    assert error["code"] == code, error
    assert error["message"] == error["details"]["user_message"] and error["details"]["technical_message"]
    for key, value in details.items():
        assert error["details"].get(key) == value, (key, error["details"])
    return error["details"]


class Trainer:
    def __init__(self, server, token=TRAINER, **body):
        self.server, self.token = server, token
        self.info = granted(server.weights("attach", {"client": "tests", **body}, token=token), 201)
        self.id = self.info["attachment_id"]
        arena = self.info["arena"]
        self.arena = np.memmap(arena["path"], dtype=np.uint8, mode="r+", shape=(arena["bytes"],))

    def call(self, route, body=None, token=None):
        return self.server.weights(route, body, self.id, token or self.token)

    def do(self, route, status=200):
        return granted(self.call(route), status)

    def write(self, mask):
        """Low mantissa bits of every tensor flipped; twice restores them."""
        for t in self.info["tensors"]:
            if t["shared_with"] is None:
                self.arena[t["offset"]:t["offset"] + t["nbytes"]].view(np.uint16)[:] ^= mask

    def commit(self, mask):
        self.do("quiesce")
        self.do("commit-begin")
        self.write(mask)
        end = self.do("commit-end")
        self.do("resume")
        return end

    def save(self, run, step, **fields):
        return self.call("save", {"manifest": {**FIELDS, "run_id": run, "step": step, **fields}})

    def digest(self):
        return hashlib.sha256(self.arena).hexdigest()

    def detach(self):
        return self.do("detach")


def load(server, attachment=None, token=TRAINER, **body):
    return server.weights("load", body, attachment, token)


def status(server):
    return granted(server.get("/api/weights/status"))


def ask(server, name=None, **fields):
    """(text, X-miLLM-Model) of a greedy completion of the resident."""
    name = name or status(server)["model"]["name"]
    answer = server.post("/v1/completions", {"model": name, "prompt": "The river ran low", "max_tokens": 12,
                                             "temperature": 0, "logprobs": 1, **fields})
    assert answer.status == 200, answer
    choice = answer.json()["choices"][0]
    assert answer.json()["model"] == name
    return (choice["text"], choice["logprobs"]["token_logprobs"]), answer.header("X-miLLM-Model")


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} of a file, by the format's own rules."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    data = raw[8 + size:]
    return {k: (v["dtype"], v["shape"], data[v["data_offsets"][0]:v["data_offsets"][1]])
            for k, v in header.items() if k != "__metadata__"}


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def audit_lines(server):
    return [json.loads(line) for line in server.log_text().splitlines() if line.startswith('{"event":"weights_audit"')]


def files_below(directory):
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*")) if directory.exists() else []


