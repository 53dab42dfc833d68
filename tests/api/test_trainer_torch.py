"""examples/trainer_torch.py trains what is served: the server's own scores fall with its loss. Needs python3-torch."""
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, TRAINER
from trainer import granted, status

pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")


def test_the_servers_scores_follow_the_trainers_loss(make_server):
    server = make_server()
    env = {**os.environ, "CAIRN_URL": f"http://{server.host}:{server.port}", "CAIRN_TOKEN": TRAINER,
           "PYTHONDONTWRITEBYTECODE": "1"}
    out = subprocess.run([sys.executable, ROOT / "examples/trainer_torch.py", "The river => ran low", "--plain", "--steps", "5",
                          "--lr", "0.01", "--save", "torch-run", "1"], env=env, capture_output=True, text=True, timeout=300)
    assert out.returncode == 0, out.stderr
    rows = re.findall(r"loss ([\d.]+), the server says ([\d.]+)", out.stdout)
    ours, servers = ([float(r[i]) for r in rows] for i in (0, 1))
    assert len(ours) == 5
    # The trainer computes from float32 masters, the server from what was rounded to BF16.
    assert all(abs(a - b) < 0.03 for a, b in zip(ours, servers)), rows
    assert servers[-1] < servers[0] - 0.1, rows
    assert status(server)["attached"] is False and "saved tiny-llama:torch-run:step-1" in out.stdout
    chain = granted(server.get("/api/weights/lineage"))["chain"]
    assert [c["name"] for c in chain] == ["tiny-llama:torch-run:step-1"]
