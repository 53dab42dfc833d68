#!/usr/bin/env python3
"""Writes blocks.json and tiny-*.gguf beside this file; run in the root of the repository.

Needs the packages gguf 0.17 or later and numpy: block values and tensor names are those of that package, not ours.
blocks.json: for each block format two random blocks and their float32 values. tiny-*.gguf: the tiny models
of tests/vectors/models as GGUF, matrices BF16 and vectors F32, so that an import must give their bytes back.
"""
import json
import os
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")

# type -> byte offsets of the f16 scales in a block
BLOCKS = {T.F16: (), T.BF16: (), T.Q4_0: (0,), T.Q4_1: (0, 2), T.Q5_0: (0,), T.Q5_1: (0, 2), T.Q8_0: (0,),
          T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,)}


def blocks():
    rng = np.random.default_rng(20261129)
    out = []
    for t, scales in BLOCKS.items():
        n, size = gguf.GGML_QUANT_SIZES[t]
        count = 2 if n > 1 else 64
        raw = rng.integers(0, 256, (count, size), dtype=np.uint8)
        if n == 1:
            raw[:, 1] &= 0xBF  # finite
        for at in scales:
            raw[:, at:at + 2] = rng.uniform(-0.1, 0.1, count).astype("<f2").view(np.uint8).reshape(count, 2)
        values = gguf.dequantize(raw.reshape(-1), t).astype("<f4")
        out.append({"type": int(t), "name": t.name, "blocks": raw.tobytes().hex(), "f32": values.tobytes().hex()})
    with open(os.path.join(HERE, "blocks.json"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


def safetensors(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            yield name, t["shape"], np.frombuffer(raw[8 + n + a:8 + n + b], "<u2").reshape(t["shape"])


def permute(w, heads):
    """HF row order -> the order GGUF keeps for llama: s*hd/2 + j -> 2j + s in each head."""
    hd = w.shape[0] // heads
    return w.reshape(heads, 2, hd // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def load(model, name):
    with open(os.path.join(MODELS, model, name), encoding="utf-8") as f:
        return json.load(f)


def add_tokenizer(w, model, pre, rows):
    tok, cfg = load(model, "tokenizer.json"), load(model, "tokenizer_config.json")
    text = {i: t for t, i in tok["model"]["vocab"].items()}
    kind = {}
    for a in tok["added_tokens"]:
        text[a["id"]] = a["content"]
        kind[a["id"]] = gguf.TokenType.CONTROL if a["special"] else gguf.TokenType.USER_DEFINED
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list([text.get(i, f"[PAD{i}]") for i in range(rows)])
    w.add_token_types([kind.get(i, gguf.TokenType.NORMAL if i in text else gguf.TokenType.UNUSED) for i in range(rows)])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]])
    ids = {t: i for i, t in text.items()}
    for key, add in (("bos_token", w.add_bos_token_id), ("eos_token", w.add_eos_token_id),
                     ("pad_token", w.add_pad_token_id)):
        if cfg.get(key):
            add(ids[cfg[key]])
    w.add_add_bos_token(cfg["add_bos_token"])
    w.add_chat_template(cfg["chat_template"])


def rope_freqs(c):
    hd, factor = c["head_dim"], 8.0
    inv = c["rope_theta"] ** (-np.arange(0, hd, 2) / hd)
    turns = 8192 * inv / (2 * np.pi)
    smooth = (turns - 1) / 3
    out = np.where(turns < 1, factor, np.where(turns > 4, 1, 1 / ((1 - smooth) / factor + smooth)))
    return out.astype(np.float32)


def convert(model, arch, pre):
    c = load(model, "config.json")
    w = gguf.GGUFWriter(os.path.join(HERE, model + ".gguf"), gguf.MODEL_ARCH_NAMES[arch])
    layers, heads = c["num_hidden_layers"], c["num_attention_heads"]
    kv = c.get("num_key_value_heads", heads)
    ff = 96 if arch == gguf.MODEL_ARCH.LFM2 else c["intermediate_size"]
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(layers)
    w.add_feed_forward_length(ff)
    w.add_head_count(heads)
    w.add_head_count_kv([kv if i in c["full_attn_idxs"] else 0 for i in range(layers)]
                        if arch == gguf.MODEL_ARCH.LFM2 else kv)
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c.get("rms_norm_eps", c.get("norm_eps")))
    if arch == gguf.MODEL_ARCH.QWEN3:
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if arch == gguf.MODEL_ARCH.LFM2:
        w.add_shortconv_l_cache(c["conv_L_cache"])
    names = gguf.get_tensor_name_map(arch, layers)
    for name, shape, u16 in safetensors(os.path.join(MODELS, model, "model.safetensors")):
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if arch == gguf.MODEL_ARCH.LLAMA and "_proj" in name and (".q_" in name or ".k_" in name):
            u16 = permute(u16, heads if ".q_" in name else kv)
        if name.endswith("conv.conv.weight"):
            u16 = u16[:, 0, :]
        if u16.ndim == 1:
            w.add_tensor(new, (u16.astype(np.uint32) << 16).view(np.float32))
        else:
            u16 = np.ascontiguousarray(u16)
            w.add_tensor(new, u16.view(np.uint8), raw_shape=u16.view(np.uint8).shape, raw_dtype=T.BF16)
    if pre == "llama-bpe":
        w.add_tensor("rope_freqs.weight", rope_freqs(c))
    add_tokenizer(w, model, pre, c["vocab_size"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    blocks()
    convert("tiny-llama", gguf.MODEL_ARCH.LLAMA, "smollm")
    convert("tiny-llama-untied-rope3", gguf.MODEL_ARCH.LLAMA, "llama-bpe")
    convert("tiny-qwen2", gguf.MODEL_ARCH.QWEN2, "qwen2")
    convert("tiny-qwen3", gguf.MODEL_ARCH.QWEN3, "qwen2")
    convert("tiny-lfm2", gguf.MODEL_ARCH.LFM2, "lfm2")
