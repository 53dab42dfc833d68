"""Lineage of a chain as long as it may get: 100,000 manifests, in bounded memory and without holding anybody up.

The chain lies under a read root in memory (/dev/shm) where there is room for it: 200,000 files on a disk are slow.
"""
import json
import re
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from trainer import Trainer, granted, status

LONG = 100_000
ROOM = 1 << 30


def in_memory():
    try:
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > ROOM else None
    except OSError:
        return None


@pytest.fixture
def read_root():
    root = Path(tempfile.mkdtemp(prefix="cairn-chain-", dir=in_memory()))
    yield root
    shutil.rmtree(root)


@pytest.fixture
def chained(make_server, read_root):
    """The resident's parent is the youngest of a chain of LONG - 1 manifests."""
    server = make_server({"WEIGHTS_LINEAGE_MAX_DEPTH": str(LONG), "WEIGHTS_CHECKPOINT_READ_ROOTS": str(read_root)})
    trainer = Trainer(server)
    first = granted(trainer.save("first", 1), 201)
    manifest = json.loads((server.checkpoints / first["path"] / "manifest.json").read_text())
    del manifest["parent"]
    chain = read_root / "chain"
    chain.mkdir()
    text = json.dumps({**manifest, "run_id": "chain"})
    text = re.sub(r'"name": "tiny-llama:[^"]*"', '"name": "tiny-llama:chain:step-%d"', text)
    text = re.sub(r'"step": \d+', '"step": %d', text)
    for step in range(LONG - 1):
        parent = f'"tiny-llama:chain:step-{step - 1}"' if step else "null"
        home = chain / f"step-{step:06d}"
        home.mkdir()
        (home / "manifest.json").write_text(text[:-1] % (step, step) + f', "parent": {parent}}}')
    granted(trainer.save("last", 1, parent=f"tiny-llama:chain:step-{LONG - 2}"), 201)
    trainer.detach()
    return server


def peak_mb(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+)", f.read())[1]) // 1024


def sanitized(server):
    with open(f"/proc/{server.process.pid}/maps") as f:
        return "libasan" in f.read()


def test_a_chain_of_100000_manifests_is_answered_whole_in_bounded_memory(chained):
    before, answers = peak_mb(chained), []
    walk = threading.Thread(target=lambda: answers.append(chained.get("/api/weights/lineage", timeout=600)))
    walk.start()
    looks = 0
    while walk.is_alive() and looks < 50:  # the walk holds nobody up
        assert status(chained)["weights_state"] == "clean"
        walk.join(0.02)
        looks += 1
    walk.join()
    answer = answers[0]
    data = granted(answer)
    assert data["complete"] is True and data["break"] is None and len(data["chain"]) == LONG
    assert [c["step"] for c in data["chain"][1:]] == list(range(LONG - 2, -1, -1))
    assert data["chain"][-1]["parent"] is None and len(answer.body) > 300 * LONG
    if sanitized(chained):
        return  # what was freed stays in quarantine
    # The text, doubled while it grows, and 70 bytes an entry against cycles.
    assert peak_mb(chained) - before < 3 * len(answer.body) / 1e6 + 70 * LONG / 1e6 + 30
