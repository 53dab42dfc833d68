"""A checkpoint that another program wrote, and the many ways in which it may be wrong."""
import itertools
import json
import os
import shutil
import struct

import numpy as np
from conftest import MODELS
from trainer import read_safetensors, sha256

COUNTER = itertools.count(1)
SOURCE = MODELS / "tiny-llama"


class Foreign:
    """A checkpoint that another program wrote: files and manifest made here."""

    def __init__(self, root, base="tiny-llama", run=None, step=1, model=SOURCE, mask=0):
        self.run, self.step, self.base = run or f"f-{next(COUNTER)}", step, base
        self.dir = root / self.run / f"step-{step:06d}"
        shutil.copytree(model, self.dir)
        if mask:
            raw = bytearray((self.dir / "model.safetensors").read_bytes())
            for at in range(len(raw) - 4000, len(raw), 2):
                raw[at] ^= mask
            (self.dir / "model.safetensors").write_bytes(raw)
        self.manifest()

    @property
    def path(self):
        return f"{self.run}/step-{self.step:06d}"

    @property
    def name(self):
        return f"{self.base}:{self.run}:step-{self.step}"

    def manifest(self, **changes):
        weights = self.dir / "model.safetensors"
        value = {"name": self.name, "base_model": self.base, "run_id": self.run, "step": self.step,
                 "created_at": "2026-10-01T08:00:00Z", "domain": "d", "signal_source": "reward", "parent": None,
                 "optimizer": {"name": "sgd", "state": "fresh"},
                 "weights_sha256": sha256(weights) if weights.is_file() else "0" * 64, **changes}
        (self.dir / "manifest.json").write_text(json.dumps({k: v for k, v in value.items() if v is not ...}))

    def config(self, **changes):
        path = self.dir / "config.json"
        value = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in value.items() if v is not ...}))


# ---- what spoils it; in the order in which it can be done to one checkpoint

def cut(ckpt):
    """Shorter than its header says; the manifest has the hash of what is left."""
    with open(ckpt.dir / "model.safetensors", "r+b") as file:
        file.truncate(1000)
    ckpt.manifest()


def flip(ckpt):
    raw = bytearray((ckpt.dir / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (ckpt.dir / "model.safetensors").write_bytes(raw)


def no_weights(ckpt):
    (ckpt.dir / "model.safetensors").unlink()


def no_tokenizer(ckpt):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (ckpt.dir / name).unlink()


def unknown_key(ckpt):
    path = ckpt.dir / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "merged_adapter": None}))


def as_f32(ckpt):
    """The same values in F32, twice as long."""
    header, data, at = {}, b"", 0
    for name, (_, shape, raw) in read_safetensors(ckpt.dir / "model.safetensors").items():
        wide = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(wide)]}
        data, at = data + wide, at + len(wide)
    text = json.dumps(header).encode()
    (ckpt.dir / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    ckpt.manifest()


def remote_code(ckpt):
    ckpt.config(auto_map={"AutoModel": "m.M"})


def quantized(ckpt):
    ckpt.config(quantization_config={"bits": 4})


def other_dtype(ckpt):
    ckpt.config(dtype="float16", torch_dtype="float16")


def pipe(ckpt):
    os.mkfifo(ckpt.dir / "pipe")


def link_out(ckpt):
    (ckpt.dir / "out").symlink_to("/etc/hostname")
