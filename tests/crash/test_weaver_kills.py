"""The server of the training API dies by SIGKILL at many moments; what the next one tells is true."""
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from conftest import MODELS, make_server  # noqa: E402,F401  (a fixture)
from weaver_http import ENV, Run, Weaver, trace  # noqa: E402

DELAYS_MS = (3, 7, 12, 18, 25, 33, 42, 60)


def work(w, run, acknowledged, seen, first):
    """Trains, saves and loads until the server is gone; remembers what was answered, and tells of the first checkpoint."""
    try:
        for i in range(1000):
            run.backward()
            run.step()
            at = run.logprobs()
            op = w.post(run.path + "/checkpoints", {"type": "weight_and_optimizer", "name": f"c{i}"}, trace=trace())
            seen.append(op["id"])
            acknowledged[w.wait(op)["path"]] = at
            first.set()
            op = w.post(run.path + "/export-sampler", {"seq_id": 1, "path": f"s{i}"})
            seen.append(op["id"])
    except Exception:
        return


@pytest.mark.parametrize("mode", ["lora", "full_ft"])
def test_every_acknowledged_checkpoint_loads_and_no_operation_is_open(make_server, tmp_path, mode):  # noqa: F811
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    acknowledged, seen, runs = {}, [], []
    for delay in DELAYS_MS:
        w = Weaver(server).connect()
        run = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": delay})
        runs.append(run)
        first = threading.Event()
        thread = threading.Thread(target=work, args=(w, run, acknowledged, seen, first))
        thread.start()
        assert first.wait(60), "no checkpoint was acknowledged"
        time.sleep(delay / 1000)
        server.stop(signal.SIGKILL)
        thread.join()
        server.start()
    w = Weaver(server).connect()
    for op in seen:
        envelope = w.get(f"/operations/{op}")
        assert envelope["status"] in ("done", "error"), envelope
        assert envelope["status"] == "done" or envelope["error"] == "server_restarted"
    fresh = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 1})
    listed = {c["path"]: c for run in runs for c in w.get(f"/models/{run.id}/checkpoints")["items"]}
    assert all(c["status"] == "completed" for c in listed.values())
    assert set(acknowledged) <= set(listed) and acknowledged
    for path, c in listed.items():
        fresh.load(path, c["type"] == "weight_and_optimizer")
        if path in acknowledged:
            assert fresh.logprobs() == acknowledged[path]
    left = [p for p in (tmp_path / "weaver").glob("*/.tmp-*")]
    assert left == []
