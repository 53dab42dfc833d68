"""Saves to durable storage and verified loads in place, at 2.5 GB."""
import json
import os
import statistics
import subprocess
import time

from .peers import made_model, python_with_torch
from .table import Table, Verdict, bench
from .tools import Server, build, figures, program, quiet
from .serving import clear


@bench("save", "2.5 GB to durable with sha256, beside SHA-256 alone and a direct write alone")
def save(pairs):
    build("all")
    store = program("bench_store")
    t, ratios = Table("GB/s"), []
    size = os.path.getsize(made_model() + "/model.safetensors")
    with Server() as s:
        s.load(made_model())
        s.attach()
        for step in range(1, pairs + 1):
            quiet()
            alone = figures(store, "--only", "limits")
            ours = size / 1e6 / s.save("bench", step)["write_ms"]
            clear(s)
            t.add("cairn save, written, hashed, synced", ours)
            t.add("SHA-256 alone", alone["sha256_gbs"])
            t.add("direct write alone", alone["write_gbs"])
            ratios.append(ours / min(alone["sha256_gbs"], alone["write_gbs"]))
    t.show()
    return [Verdict("save", statistics.median(ratios), 0.9)]


@bench("load", "2.5 GB in place under an attachment, verified: hash speed, and the time inside the barrier beside a copy")
def load(pairs):
    build("all")
    store = program("bench_store")
    t, verify, place = Table("GB/s"), [], []
    size = os.path.getsize(made_model() + "/model.safetensors")
    with Server() as s:
        s.load(made_model())
        s.attach()
        path = s.save("bench", 1)["path"]
        s.call("POST", "/api/weights/load", {"path": path})  # the staging memory is touched once
        for _ in range(pairs):
            quiet()
            alone = figures(store, "--only", "limits")
            loaded = s.call("POST", "/api/weights/load", {"path": path})
            t.add("cairn verify", size / 1e6 / loaded["verify_ms"])
            t.add("SHA-256 alone", alone["sha256_gbs"])
            t.add("cairn, inside the barrier", size / 1e6 / loaded["write_ms"])
            t.add("copy with all cores", alone["copy_gbs"])
            verify.append(size / 1e6 / loaded["verify_ms"] / alone["sha256_gbs"])
            place.append(alone["copy_gbs"] / (size / 1e6 / loaded["write_ms"]))
        clear(s)
    t.show()
    return [Verdict("load-verify", statistics.median(verify), 0.9),
            Verdict("load-barrier", statistics.median(place), 1.3, at_least=False)]


PEER = r"""
import hashlib, json, os, sys, time
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import torch
from safetensors.torch import load_file, save_file
what, source, target = sys.argv[1:4]

def sha(path):
    with open(path, "rb", buffering=0) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()

def synced(path):
    fd = os.open(path, os.O_RDONLY); os.fsync(fd); os.close(fd)

if what in ("safetensors", "torch"):
    tensors = {k: v.clone() for k, v in load_file(source).items()}
    began = time.monotonic()
    if what == "safetensors":
        save_file(tensors, target); synced(target); sha(target)
    else:
        torch.save(tensors, target); synced(target)
    print(time.monotonic() - began)
else:
    began = time.monotonic()
    sha(source)
    tensors = {k: v.clone() for k, v in load_file(source).items()}
    print(time.monotonic() - began)
"""


def peer(what, source, target="-"):
    out = subprocess.run([python_with_torch(), "-c", PEER, what, source, target],
                         capture_output=True, text=True, check=True).stdout
    return float(out.split()[-1])


@bench("save-peers", "2.5 GB, fresh files: beside safetensors + fsync + sha256, and torch.save + fsync without a hash")
def save_peers(pairs):
    build("all")
    source, t = made_model() + "/model.safetensors", Table("s")
    size = os.path.getsize(source)
    with Server() as s:
        s.load(made_model())
        s.attach()
        for step in range(1, pairs + 1):
            quiet()
            t.add("cairn: written, hashed, synced", s.save("bench", step)["write_ms"] / 1e3)
            clear(s)
            for name in ("safetensors", "torch"):
                target = os.path.join(s.dir, name)
                t.add(PEER_ROWS[name], peer(name, source, target))
                os.unlink(target)
    t.show()
    print(f"{size / 1e9:.2f} GB")
    return [Verdict("save-safetensors", 1 / t.ratio("cairn: written, hashed, synced", PEER_ROWS["safetensors"]), 2.2),
            Verdict("save-torch", 1 / t.ratio("cairn: written, hashed, synced", PEER_ROWS["torch"]), 1.5)]


PEER_ROWS = {"safetensors": "safetensors save_file + fsync + sha256", "torch": "torch.save + fsync, no hash"}


def drop_cache(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@bench("load-peers", "2.5 GB verified, not attached: beside sha256 + safetensors load_file + clone, cold and warm page cache")
def load_peers(pairs):
    build("all")
    t = Table("s")
    with Server() as s:
        s.load(made_model())
        s.attach()
        saved = s.save("bench", 1)
        s.call("POST", "/api/weights/detach", {})
        del s.headers["X-miLLM-Attachment"]
        path = os.path.join(s.dir, "checkpoints", saved["path"], "model.safetensors")
        load_timed(s, saved)  # the spare image is touched once
        for _ in range(pairs):
            quiet()
            for cache in ("cold", "warm"):
                for row, run in ((f"cairn, {cache}", lambda: load_timed(s, saved)),
                                 (f"sha256 + load_file + clone, {cache}", lambda: peer("load", path))):
                    warm(path) if cache == "warm" else drop_cache(path)
                    t.add(row, run())
        clear(s)
    t.show()
    return [Verdict("load-peers-cold", 1 / t.ratio("cairn, cold", "sha256 + load_file + clone, cold"), 2.1),
            Verdict("load-peers-warm", 1 / t.ratio("cairn, warm", "sha256 + load_file + clone, warm"), 1.3)]


def warm(path):
    with open(path, "rb", buffering=0) as f:
        while f.read(1 << 24):
            pass


def load_timed(s, saved):
    """A verified swap to the checkpoint, the way of somebody who is not attached."""
    began = time.monotonic()
    s.call("POST", "/api/weights/load", {"path": saved["path"]})
    return time.monotonic() - began


def chain(root, base, n):
    """n manifests, each the child of the one before; lineage reads nothing else."""
    for step in range(1, n + 1):
        where = os.path.join(root, "chain", f"step-{step:06d}")
        os.makedirs(where, exist_ok=True)
        if os.path.exists(where + "/manifest.json"):
            continue
        with open(where + "/manifest.json", "w") as f:
            json.dump({"name": f"{base}:chain:step-{step}", "base_model": base, "run_id": "chain", "step": step,
                       "created_at": "2026-01-01T00:00:00Z", "domain": "bench", "signal_source": "corpus",
                       "parent": f"{base}:chain:step-{step - 1}" if step > 1 else None,
                       "optimizer": {"name": "none", "state": "fresh"}, "weights_sha256": "0" * 64}, f)


@bench("control", "lineage of 1,000 entries: < 20 ms; GET /api/weights/status while 8 clients stream: p99 < 5 ms", pairs=20)
def control(pairs):
    build("all")
    from .peers import smollm
    from .serving import body
    from .table import percentile
    from .tools import Streams
    t = Table("ms")
    with Server() as s:
        s.load(smollm())
        s.attach()
        chain(s.dir + "/checkpoints", "bench", 999)
        s.call("POST", "/api/weights/save", {"manifest": {
            "run_id": "chain", "step": 1000, "domain": "bench", "signal_source": "corpus",
            "parent": "bench:chain:step-999", "optimizer": {"name": "none", "state": "fresh"}}})
        for _ in range(pairs):
            began = time.monotonic()
            found = s.call("GET", "/api/weights/lineage")
            t.add("lineage of 1,000", (time.monotonic() - began) * 1e3)
        assert len(found["chain"]) == 1000 and found["complete"], found.get("break")
        streams = Streams(s.address, "/v1/completions", body(s.name(), 600), 8)
        time.sleep(0.3)
        while streams.process.poll() is None:
            began = time.monotonic()
            s.call("GET", "/api/weights/status")
            t.add("status under load", (time.monotonic() - began) * 1e3)
            time.sleep(0.005)
        streams.finish()
    t.show()
    return [Verdict("control-lineage-ms", t.median("lineage of 1,000"), 20, at_least=False),
            Verdict("control-status-p99-ms", percentile(t.rows["status under load"], 99), 5, at_least=False)]
