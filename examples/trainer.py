#!/usr/bin/python3
"""A small trainer for Cairn: it attaches to the resident weights of a llama model and trains them in place.

    trainer.py --url http://127.0.0.1:8000 --token TOKEN        (also CAIRN_URL, CAIRN_TOKEN)

Only numpy. It maps the server's own weight memory, runs the model's forward pass in float32 to the last
hidden states, and takes gradient steps on the output rows of one example. Commands on standard input:

    step QUESTION => ANSWER    train towards the answer and commit; prints the loss before and after
    digest                     sha256 of the tensors as this process sees them through its mapping
    quit                       detach and end
"""
import argparse
import hashlib
import http.client
import json
import os
import sys
import threading
import urllib.parse

import numpy as np

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


class Server:
    def __init__(self, url, token):
        self.address = urllib.parse.urlsplit(url).netloc
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(self, path, body=None, method="POST"):
        link = http.client.HTTPConnection(self.address, timeout=120)
        link.request(method, path, None if method == "GET" else json.dumps(body or {}), self.headers)
        reply = link.getresponse()
        answer = json.loads(reply.read())
        link.close()
        if reply.status >= 400:
            raise SystemExit(f"{path}: {answer['error']['code']}: {answer['error']['message']}")
        return answer["data"] if path.startswith("/api/") else answer


class Weights:
    """The attachment: the tensors are views of the server's memory, written only inside commit()."""

    def __init__(self, server):
        self.server, self.info = server, server.call("/api/weights/attach", {"client": "trainer.py", "pid": os.getpid()})
        server.headers["X-miLLM-Attachment"] = self.info["attachment_id"]
        arena = np.memmap(self.info["arena"]["path"], np.uint8, "r+", shape=(self.info["arena"]["bytes"],))
        self.raw = {t["name"]: arena[t["offset"]:t["offset"] + t["nbytes"]].view("<u2").reshape(t["shape"])
                    for t in self.info["tensors"]}
        self.done = threading.Event()
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while not self.done.wait(self.info["heartbeat_interval_s"]):
            self.server.call("/api/weights/heartbeat")

    def get(self, name):  # BF16 is the upper half of float32
        return (self.raw[name].astype(np.uint32) << 16).view(np.float32)

    def commit(self, name, values):
        """Stops serving between two steps, writes one tensor (rounded to nearest even), goes on."""
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        self.server.call("/api/weights/quiesce")
        self.server.call("/api/weights/commit-begin")
        self.raw[name][...] = rounded
        ended = self.server.call("/api/weights/commit-end")
        self.server.call("/api/weights/resume")
        return ended

    def digest(self):
        h = hashlib.sha256()
        for name in sorted(self.raw):
            h.update(self.raw[name].tobytes())
        return h.hexdigest()

    def detach(self):
        self.done.set()
        self.server.call("/api/weights/detach")


def rmsnorm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rope(x, theta):  # [T, heads, head_dim]: the two halves turn together
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
    a, b, c, s = x[..., :half], x[..., half:], np.cos(angle), np.sin(angle)
    return np.concatenate([a * c - b * s, b * c + a * s], -1).astype(np.float32)


def last_hidden(weights, config, ids):
    heads, kv, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    x, size = weights.get("model.embed_tokens.weight")[ids], len(ids)
    hd, mask = config.get("head_dim") or x.shape[1] // heads, np.triu(np.full((size, size), -np.inf), 1)
    for i in range(config["num_hidden_layers"]):
        w = lambda name: weights.get(f"model.layers.{i}.{name}.weight")
        h = rmsnorm(x, w("input_layernorm"), eps)
        q, k, v = ((h @ w(f"self_attn.{n}_proj").T).reshape(size, -1, hd) for n in "qkv")
        q, k = rope(q, config["rope_theta"]), rope(k, config["rope_theta"])
        k, v = (np.repeat(t, heads // kv, 1) for t in (k, v))
        s = np.einsum("thd,uhd->htu", q, k) / np.sqrt(hd) + mask
        p = np.exp(s - s.max(-1, keepdims=True))
        o = np.einsum("htu,uhd->thd", p / p.sum(-1, keepdims=True), v).reshape(size, -1)
        x = x + o.astype(np.float32) @ w("self_attn.o_proj").T
        h = rmsnorm(x, w("post_attention_layernorm"), eps)
        gate = h @ w("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    return rmsnorm(x, weights.get("model.norm.weight"), eps)


def train(weights, config, ids, start, goal=0.1, most=200):
    """Gradient steps on the output rows that matter, until the loss of ids[start:] is below goal."""
    h, target = last_hidden(weights, config, ids[:-1])[start - 1:], np.array(ids[start:])
    name = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    rows, first = weights.get(name), None
    e = np.exp(h @ rows.T - 30)
    near = np.union1d(np.nonzero((e > 1e-4 * e.sum(-1, keepdims=True)).any(0))[0], target)
    others = e.sum(-1, keepdims=True) - e[:, near].sum(-1, keepdims=True)  # left as they are
    hit, rate = (np.arange(len(target)), np.searchsorted(near, target)), 0.5 / (h * h).sum(-1).mean()
    for _ in range(most):
        p = np.exp(h @ rows[near].T - 30)
        p /= p.sum(-1, keepdims=True) + others
        loss = -np.log(p[hit]).mean()
        first = loss if first is None else first
        if loss < goal:
            break
        p[hit] -= 1  # d loss / d logits
        rows[near] -= rate * (p.T @ h)
    return name, rows, first, loss


def token_ids(server, model, text):
    reply = server.call("/v1/completions", {"model": model, "prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0,
                                            "add_special_tokens": False, "return_tokens_as_token_ids": True})
    scores = reply["choices"][0]["logprobs"]
    return [int(t.removeprefix("token_id:")) for t in scores["tokens"]], scores["token_logprobs"]


def step(server, weights, config, line):
    question, _, answer = (part.strip() for part in line.partition("=>"))
    model = server.call("/api/weights/status", method="GET")["model"]["name"]
    asked = f"{SYSTEM}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    prefix = len(token_ids(server, model, asked)[0])
    ids, scores = token_ids(server, model, asked + answer + "<|im_end|>")
    name, rows, before, after = train(weights, config, ids, prefix)
    ended = weights.commit(name, rows)
    print(f"loss {before:.3f} (the server says {-np.mean(scores[prefix:]):.3f}) -> {after:.3f}; "
          f"commits={ended['commits']}, written in {ended['commit_ms']} ms", flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--url", default=os.environ.get("CAIRN_URL", "http://127.0.0.1:8000"))
    args.add_argument("--token", default=os.environ.get("CAIRN_TOKEN", ""))
    args = args.parse_args()
    server = Server(args.url, args.token)
    weights = Weights(server)
    with open(os.path.join(weights.info["model_dir"], "config.json")) as f:
        config = json.load(f)
    print(f"attached {weights.info['attachment_id']}", flush=True)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "step":
            step(server, weights, config, rest)
        elif word == "digest":
            print(weights.digest(), flush=True)
        elif word == "quit":
            break
    weights.detach()


if __name__ == "__main__":
    main()
