#!/usr/bin/python3
"""A small trainer for Cairn: it attaches to the resident weights of a llama model and trains them in place.

    trainer.py --url http://127.0.0.1:8000 --token TOKEN        (also CAIRN_URL, CAIRN_TOKEN)

Only numpy and clients/python. It maps the server's own weight memory, runs the model's forward pass in float32 to the
last hidden states, and takes gradient steps on the output rows of one example. Commands on standard input:

    step QUESTION => ANSWER    train towards the answer and commit; prints the loss before and after
    digest                     sha256 of the tensors as this process sees them through its mapping
    quit                       detach and end
"""
import argparse
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../clients/python"))
from cairn_client import CairnError, Client  # noqa: E402

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


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


def token_ids(client, model, text):
    reply = client.call("POST", "/v1/completions", {"model": model, "prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0,
                                                    "add_special_tokens": False, "return_tokens_as_token_ids": True})
    scores = reply["choices"][0]["logprobs"]
    return [int(t.removeprefix("token_id:")) for t in scores["tokens"]], scores["token_logprobs"]


def step(client, weights, config, line):
    question, _, answer = (part.strip() for part in line.partition("=>"))
    model = client.status()["model"]["name"]
    asked = f"{SYSTEM}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    prefix = len(token_ids(client, model, asked)[0])
    ids, scores = token_ids(client, model, asked + answer + "<|im_end|>")
    name, rows, before, after = train(weights, config, ids, prefix)
    rows = weights.encode(name, rows)  # before the commit: serving need not wait for the rounding
    with weights.commit() as commit:  # serving stops between two steps and goes on with the new values
        commit.put(name, rows)
    print(f"loss {before:.3f} (the server says {-np.mean(scores[prefix:]):.3f}) -> {after:.3f}; "
          f"commits={commit.result['commits']}, written in {commit.result['commit_ms']} ms", flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--url", help="default: CAIRN_URL, http://127.0.0.1:8000")
    args.add_argument("--token", help="default: CAIRN_TOKEN")
    args = args.parse_args()
    client = Client(args.url, args.token)
    with client.attach("trainer.py") as weights:
        with open(os.path.join(weights.info["model_dir"], "config.json")) as f:
            config = json.load(f)
        print(f"attached {weights.id}", flush=True)
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "step" and "=>" in rest:
                step(client, weights, config, rest)
            elif word == "digest":
                print(weights.digest(), flush=True)
            elif word == "quit":
                break
            elif word:
                print("a line is: step QUESTION => ANSWER, digest, or quit", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except CairnError as e:
        raise SystemExit(str(e)) from None
    except KeyboardInterrupt:  # detached on the way here
        raise SystemExit(130) from None
