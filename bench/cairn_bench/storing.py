"""Saves to durable storage and verified loads in place, at 2.5 GB."""
import os
import statistics

from .peers import made_model
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
