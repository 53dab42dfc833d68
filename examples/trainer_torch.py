#!/usr/bin/python3
"""A trainer for Cairn with PyTorch: autograd and AdamW on the tensors that the server serves (llama models).

    trainer_torch.py "What is the capital of France? => Ask a geographer." --steps 8 --save my-run 1

Needs PyTorch (Debian: python3-torch) and clients/python. Each parameter is a torch tensor over the server's own memory;
the ones that are trained have a float32 master, which is rounded into that memory inside a commit after every step.
CAIRN_URL and CAIRN_TOKEN say where the server is.
"""
import argparse
import json
import os
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../clients/python"))
from cairn_client import CairnError, Client  # noqa: E402

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}


def map_tensors(weights):
    """Every parameter as a torch tensor that shares the server's memory: written only inside a commit."""
    return {name: torch.frombuffer(weights.arena, dtype=DTYPES[t["dtype"]], count=t["nbytes"] // 2,
                                   offset=t["offset"]).view(t["shape"]) for name, t in weights.tensors.items()}


def rmsnorm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rope(x, theta):  # [heads, T, head_dim]: the two halves turn together
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(half) / half)
    a, b, c, s = x[..., :half], x[..., half:], angle.cos(), angle.sin()
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def logits(get, config, ids):
    """float32 [T, vocab]; get(name) gives a parameter as float32."""
    heads, kv, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    x = get("model.embed_tokens.weight")[ids]
    hd = config.get("head_dim") or x.shape[1] // heads
    mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)
    for i in range(config["num_hidden_layers"]):
        def w(name):
            return get(f"model.layers.{i}.{name}.weight")
        h = rmsnorm(x, w("input_layernorm"), eps)
        q, k, v = ((h @ w(f"self_attn.{n}_proj").T).view(len(ids), -1, hd).transpose(0, 1) for n in "qkv")
        q, k = rope(q, config["rope_theta"]), rope(k, config["rope_theta"])
        k, v = (t.repeat_interleave(heads // kv, 0) for t in (k, v))
        o = F.softmax(q @ k.transpose(1, 2) / hd ** 0.5 + mask, -1) @ v
        x = x + o.transpose(0, 1).reshape(len(ids), -1) @ w("self_attn.o_proj").T
        h = rmsnorm(x, w("post_attention_layernorm"), eps)
        x = x + (F.silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    head = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    return rmsnorm(x, get("model.norm.weight"), eps) @ get(head).T


def score(client, text):
    """Token ids of a text and the server's own log-probability of each."""
    reply = client.call("POST", "/v1/completions", {"model": client.status()["model"]["name"], "prompt": text, "max_tokens": 0,
                                                    "echo": True, "logprobs": 0, "add_special_tokens": False,
                                                    "return_tokens_as_token_ids": True})
    scores = reply["choices"][0]["logprobs"]
    return [int(t.removeprefix("token_id:")) for t in scores["tokens"]], scores["token_logprobs"]


def prompt_of(line, plain):
    question, _, answer = (part.strip() for part in line.partition("=>"))
    if plain:
        return question, " " + answer
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", answer + "<|im_end|>"


def train(client, weights, args):
    with open(os.path.join(weights.info["model_dir"], "config.json")) as f:
        config = json.load(f)
    mapped = map_tensors(weights)
    last = range(config["num_hidden_layers"] - args.layers, config["num_hidden_layers"])
    trained = [n for n in mapped if n == "model.norm.weight" or any(n.startswith(f"model.layers.{i}.") for i in last)]
    master = {n: mapped[n].float().requires_grad_() for n in trained}
    optimizer = torch.optim.AdamW(master.values(), lr=args.lr, weight_decay=0.0)
    asked, answer = prompt_of(args.example, args.plain)
    start = len(score(client, asked)[0])
    for step in range(args.steps):
        ids, scores = score(client, asked + answer)
        out = logits(lambda n: master[n] if n in master else mapped[n].float(), config, torch.tensor(ids[:-1]))
        loss = F.cross_entropy(out[start - 1:], torch.tensor(ids[start:]))
        print(f"step {step}: loss {loss.item():.4f}, the server says {-sum(scores[start:]) / len(ids[start:]):.4f}", flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with weights.commit(), torch.no_grad():
            for name in trained:
                mapped[name].copy_(master[name])


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("example", metavar="QUESTION => ANSWER")
    args.add_argument("--plain", action="store_true", help="a text to go on with, not a chat")
    args.add_argument("--steps", type=int, default=8)
    args.add_argument("--layers", type=int, default=2, help="how many of the last layers are trained (default 2)")
    args.add_argument("--lr", type=float, default=3e-4)
    args.add_argument("--save", nargs=2, metavar=("RUN_ID", "STEP"), help="save a checkpoint at the end")
    args = args.parse_args()
    client = Client()
    with client.attach("trainer_torch.py") as weights:
        train(client, weights, args)
        if args.save:
            saved = weights.save(args.save[0], int(args.save[1]), optimizer={"name": "adamw", "state": "fresh"})
            print(f"saved {saved['name']}, sha256 {saved['weights_sha256']}")


if __name__ == "__main__":
    try:
        main()
    except CairnError as e:
        raise SystemExit(str(e)) from None
