"""Memory at rest and the time to the first token."""
import os
import time

from .peers import smollm
from .serving import body
from .table import Table, Verdict, bench
from .tools import Server, Streams, build


def resident_mb(pid):
    """Memory of a process and of everything it started (proportional shares), in MB."""
    total, pids = 0, [pid]
    while pids:
        p = pids.pop()
        with open(f"/proc/{p}/smaps_rollup") as f:
            total += next(int(line.split()[1]) for line in f if line.startswith("Pss:"))
        with open(f"/proc/{p}/task/{p}/children") as f:
            pids += [int(c) for c in f.read().split()]
    return total / 1024 * 1.048576


@bench("idle", "memory of all our processes after loading, before the first request: weights + 100 MB")
def idle(pairs):
    build("all")
    t, weights = Table("MB"), os.path.getsize(smollm() + "/model.safetensors") / 1e6
    for _ in range(pairs):
        with Server() as s:
            s.load(smollm())
            time.sleep(0.5)
            t.add("all processes", resident_mb(s.process.pid))
            t.add("weights", weights)
    t.show()
    return [Verdict("idle-over-weights-mb", t.median("all processes") - weights, 100, at_least=False)]


@bench("start", "process start to the first token of a 20-token prompt, SmolLM2, model in the page cache: < 1 s")
def start(pairs):
    build("all")
    t = Table("s")
    with open(smollm() + "/model.safetensors", "rb") as f:
        while f.read(1 << 24):
            pass
    for _ in range(pairs):
        began = time.monotonic()
        with Server() as first:
            first.load(smollm())
            name = first.name()
            result = Streams(first.address, "/v1/completions",
                             body(name, 1, "The old lighthouse keeper wrote in his diary every evening, and then he went up to look at"), 1).finish()
            t.add("start to first token", time.monotonic() - began)
            assert result["events"][0] == 1
    t.show()
    return [Verdict("start-s", t.median("start to first token"), 1.0, at_least=False)]
