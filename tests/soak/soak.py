#!/usr/bin/python3
"""soak.py [--seconds N]: mixed use of one server for N seconds (an hour unless said).

Chats, completions, embeddings, scoring, streams whose clients leave at random moments, bad requests, a trainer that commits
and saves, loads of two checkpoints, scrapes. Every answer is judged; every 10 seconds the server's memory, descriptors and
threads are read from /metrics. At the end, after a pause, they must be what they were after the warm-up, give or take the
limits below, no slot may be taken, and the queue must be empty. Exit 1 with one line for each thing that is wrong.
Standard library and numpy only."""
import argparse
import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from conftest import Server  # noqa: E402
from trainer import FIELDS, Trainer, granted  # noqa: E402

WARM_SECONDS, SAMPLE_SECONDS = 0.2, 10
MEMORY_MORE, DESCRIPTORS_MORE, THREADS_MORE = 64 << 20, 8, 4
END_ERRORS = {"queue_full", "model_not_found", "model_busy"}  # what a swap or a full queue may answer


class Soak:
    def __init__(self, server, seconds):
        self.server, self.until = server, time.monotonic() + seconds
        self.faults, self.counts, self.lock = [], {}, threading.Lock()
        self.samples = []

    def over(self):
        return time.monotonic() > self.until or len(self.faults) > 20

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + n

    def fault(self, text):
        with self.lock:
            self.faults.append(text[:300])

    def name(self):
        return self.server.get("/api/weights/status").json()["data"]["model"]["name"]

    def judge(self, what, answer, wanted=200):
        """200, or an error that a swap or a full queue explains."""
        if answer.status == wanted:
            self.count(what)
            return answer.json()
        code = answer.json().get("error", {}).get("code") if answer.status in (404, 503) else None
        if code in END_ERRORS:
            self.count(f"{what}: {code}")
        else:
            self.fault(f"{what}: {answer!r}")
        return None

    # -- what clients do

    def talk(self, rng):
        body = {"model": self.name(), "max_tokens": rng.randint(1, 40), "temperature": rng.choice([0, 1]), "seed": rng.randint(0, 99),
                "messages": [{"role": "user", "content": "word " * rng.randint(1, 60)}], "n": rng.choice([1, 1, 3])}
        got = self.judge("chat", self.server.post("/v1/chat/completions", body))
        if got and len(got["choices"]) != body["n"]:
            self.fault(f"chat: {len(got['choices'])} choices of {body['n']}")

    def score(self, rng):
        ids = [rng.randint(3, 400) for _ in range(rng.randint(2, 200))]
        got = self.judge("score", self.server.post("/v1/completions", {"model": self.name(), "prompt": ids, "max_tokens": 0, "echo": True,
                                                                       "logprobs": 0}))
        if got and len(got["choices"][0]["logprobs"]["token_logprobs"]) != len(ids):
            self.fault("score: another number of tokens")

    def embed(self, rng):
        texts = ["text " * rng.randint(1, 40) for _ in range(rng.randint(1, 12))]
        got = self.judge("embed", self.server.post("/v1/embeddings", {"model": self.name(), "input": texts, "normalize": True}))
        if got and len(got["data"]) != len(texts):
            self.fault("embed: another number of vectors")

    def leave(self, rng):
        """A stream that its client leaves, at a random moment, in one of three ways."""
        body = json.dumps({"model": self.name(), "prompt": "The river", "max_tokens": 400, "stream": True,
                           "logit_bias": {"2": -100}}).encode()
        sock = self.server.connect()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                     + str(len(body)).encode() + b"\r\n\r\n" + body)
        time.sleep(rng.random() * 0.2)
        how = rng.randint(0, 2)
        if how == 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
        elif how == 1:
            sock.recv(rng.randint(1, 3000))
        sock.close()
        self.count("left")

    def err(self, rng):
        body = rng.choice([b"{", b'{"model": 5}', json.dumps({"model": self.name(), "prompt": "a", "temperature": 9}).encode(),
                           b"\xff" * 100, json.dumps({"model": self.name(), "prompt": "a " * 5000}).encode()])
        answer = self.server.call("POST", "/v1/completions", body)
        if answer.status not in (400, 404, 503):
            self.fault(f"bad request: {answer!r}")
        self.count("refused")

    def rude(self, rng):
        """What is not HTTP, or not to its end: one refusal, and the connection ends."""
        chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        data, status = rng.choice([(b"GET /v1/models HTTP/9.9\r\n\r\n", b"505"), (chunked + b"zz\r\n", b"400"),
                                   (chunked + b"1" * 17 + b"\r\n", b"400"), (chunked + b"2;" + b"x" * 70000, b"400"),
                                   (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nCookie: " + b"a=b;" * 7000 + b"\r\n\r\n", b"431")])
        with self.server.connect() as sock:
            with contextlib.suppress(OSError):  # the server may refuse, and close, before it has all
                sock.sendall(data)
            got = sock.recv(65536)
        if not got.startswith(b"HTTP/1.1 " + status):
            self.fault(f"{data[-60:]!r}: {got[:200]!r}")
        self.count("rude")

    def client(self, seed):
        rng = random.Random(seed)
        while not self.over():
            try:
                rng.choice([self.talk, self.talk, self.score, self.embed, self.leave, self.err, self.rude])(rng)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
                self.fault(f"client {seed}: {type(e).__name__} {e}")

    # -- what a trainer does

    def train(self):
        step = 0
        while not self.over():
            try:
                step += 1
                self.episode(step)
            except AssertionError as e:
                self.fault(f"trainer: {e}")
            time.sleep(0.5)

    def attached(self, step):
        """Attach, three commits, two saves, detach: the names of the saves."""
        trainer, names = Trainer(self.server), []
        try:
            for k in range(3):
                trainer.commit(1)
                if k != 1:
                    fields = {**FIELDS, "run_id": "soak", "step": step * 10 + k, "parent": None}
                    names.append(granted(trainer.call("save", {"manifest": fields}), 201)["name"])
                    self.count("saves")
            trainer.commit(1)
        finally:
            trainer.detach()
        return names

    def episode(self, step):
        """A trainer comes and goes, then a load of an older checkpoint and of the model."""
        names = self.attached(step)
        for body in ({"name": names[0]}, {"model_id": self.server.row}):
            granted(self.server.weights("load", body))
            self.count("loads")
        shutil.rmtree(self.server.checkpoints / "soak", ignore_errors=True)

    # -- what stays the same

    def sample(self):
        page = self.server.get("/metrics").body.decode()
        values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#" and "{" not in line)
        with open(f"/proc/{self.server.process.pid}/smaps_rollup") as f:
            anonymous = next(int(line.split()[1]) << 10 for line in f if line.startswith("Anonymous:"))
        found = {"memory": anonymous, "descriptors": float(values["process_open_fds"]), "threads": float(values["process_threads"])}
        self.samples.append(found)
        return found

    def watch(self):
        while not self.over():
            time.sleep(min(SAMPLE_SECONDS, max(0.0, self.until - time.monotonic())))
            self.sample()

    def settle(self):
        """Nobody runs and nobody waits, soon after the last client is gone."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            block = self.server.get("/api/health/detailed").json()["inference"]
            if block["in_flight"] == block["queue_pending"] == 0:
                return
            time.sleep(0.1)
        self.fault(f"not idle after the last client: {block}")


def is_flat(soak, early, late):
    limits = {"memory": MEMORY_MORE, "descriptors": DESCRIPTORS_MORE, "threads": THREADS_MORE}
    for what, more in limits.items():
        before, after = (statistics.median(s[what] for s in part) for part in (early, late))
        print(f"{what}: {before:,.0f} -> {after:,.0f}, at most {max(s[what] for s in soak.samples):,.0f}")
        if after > before + more:
            soak.fault(f"{what} grew from {before:,.0f} to {after:,.0f}")


def run(seconds, clients):
    state = tempfile.mkdtemp(prefix="cairn-soak-")
    server = Server(state, {"MAX_PENDING_REQUESTS": "16", "WEIGHTS_QUIESCE_MAX_HOLD_S": "20",
                            "WEIGHTS_DRAIN_TIMEOUT_S": "300"})  # on a machine that is busy with other things
    soak = Soak(server, seconds)
    server.register_and_load("tiny-llama")
    work = [threading.Thread(target=soak.client, args=(i,)) for i in range(clients)]
    work += [threading.Thread(target=soak.train), threading.Thread(target=soak.watch)]
    for t in work:
        t.start()
    for t in work:
        t.join()
    soak.settle()
    for _ in range(3):
        time.sleep(1)
        soak.sample()
    warm = max(1, int(len(soak.samples) * WARM_SECONDS))
    is_flat(soak, soak.samples[warm - 1:warm + 3], soak.samples[-5:])
    if server.stop(signal.SIGTERM) != 0:
        soak.fault(f"the server ended with {server.process.returncode}:\n{server.log_text()[-1000:]}")
    shutil.rmtree(state, ignore_errors=True)
    return soak


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--seconds", type=float, default=3600)
    args.add_argument("--clients", type=int, default=12)
    args = args.parse_args()
    soak = run(args.seconds, args.clients)
    print(", ".join(f"{k} {v}" for k, v in sorted(soak.counts.items())))
    for text in soak.faults:
        print("FAULT", text)
    print(f"{args.seconds:.0f} s, {len(soak.faults)} faults")
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
