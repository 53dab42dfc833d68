"""The tutorial's scripts, shortened, on a tiny model: docs/tutorials/train-smollm2.md."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/api"))
from conftest import MODELS, make_server  # noqa: E402,F401  (a fixture)

KEY, BASE = "sk-tutorial", "tiny-qwen2"


@pytest.fixture(scope="module")
def own(make_server):  # noqa: F811
    server = make_server({"WEAVER_API_KEYS": f"reader:{KEY}"}, model=None)
    server.register(MODELS / BASE)
    return server


def run(server, script, *options):
    """What the script says; its curve is on standard output."""
    env = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parent / "standin"), HF_HUB_OFFLINE="1",
               NO_PROXY="127.0.0.1")
    done = subprocess.run([sys.executable, str(ROOT / "examples/weaver" / script), "--base-model", BASE, "--key", KEY,
                           "--url", f"http://{server.host}:{server.port}", *options], env=env, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("mode", ["lora", "full"])
def test_supervised_training_lowers_the_loss_and_saves_its_state(own, mode):
    said = run(own, "supervised.py", "--mode", mode, "--steps", "6")
    losses = [float(x) for x in re.findall(r"^step +\d+  loss ([\d.]+)$", said, re.M)]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert re.search(rf"^saved weaver://[-0-9a-f]+/checkpoints/sailor-{mode}$", said, re.M)
    assert "loss: " in said and " |" in said


def test_the_policy_loop_samples_from_its_own_exports(own):
    said = run(own, "policy_gradient.py", "--steps", "2")
    rewards = re.findall(r"^step +\d+  mean reward ([\d.]+)", said, re.M)
    assert len(rewards) == 2 and "mean reward: " in said
