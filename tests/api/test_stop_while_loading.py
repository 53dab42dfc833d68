"""A server that is told to stop while it reads weights: the reading ends, not the wait for it.

A test build waits ten minutes after the first bytes of each reading, or until the server is being stopped. So a server
that read on would be killed by stop(), and the test fails.
"""
import os
import signal
import sqlite3
import subprocess
import threading

import pytest
from conftest import FAULTS, MODELS, OPERATOR, ROOT, needs_faults, wait_until
from foreign import Foreign
from trainer import audit_lines, granted, load, refused, status
from weaver_http import ENV, Run, Weaver

pytestmark = needs_faults
SLOW = {**ENV, "CAIRN": str(FAULTS), "WEIGHTS_TEST_READ_DELAY_MS": "600000"}


@pytest.fixture
def slow(make_server, tmp_path):
    return make_server(SLOW, model=None, state=tmp_path / "state")


def in_thread(call):
    """[the answer] when the thread has ended."""
    got = []
    thread = threading.Thread(target=lambda: got.append(call()))
    thread.start()
    return thread, got


def row_status(state, row):
    with sqlite3.connect(f"file:{state}/cairn.db?mode=ro", uri=True) as db:
        return db.execute("SELECT status FROM models WHERE id = ?", (row,)).fetchone()[0]


def is_reading(server):
    """The file of the weights is open."""
    names = (os.readlink(f) for f in os.scandir(f"/proc/{server.process.pid}/fd"))
    return any(n.endswith("model.safetensors") for n in names)


def reads(server):
    def look():
        try:
            return is_reading(server)
        except FileNotFoundError:  # a descriptor that was closed meanwhile
            return False
    wait_until(look)


def test_a_load_in_the_background_is_cut_short_and_its_row_is_ready(slow):
    row = slow.register(MODELS / "tiny-llama")["id"]
    assert slow.post(f"/api/models/{row}/load").status == 202
    reads(slow)
    assert slow.stop() == 0
    log = (slow.state / "server.log").read_text()
    assert "model_load_failed" in log and "being stopped" in log and "model_loaded" not in log
    assert row_status(slow.state, row) == "ready"


def test_a_weights_load_that_is_cut_short_says_so(slow):
    row = slow.register(MODELS / "tiny-llama")["id"]
    checkpoint = Foreign(slow.checkpoints)
    for body in ({"model_id": row}, {"path": checkpoint.path}):
        thread, got = in_thread(lambda body=body: load(slow, None, OPERATOR, **body))
        reads(slow)
        assert slow.stop() == 0
        thread.join(60)
        refused(got[0], 500, "MODEL_LOAD_FAILED", reason="stopping")
        assert row_status(slow.state, row) == "ready"
        slow.start()
        assert status(slow)["model"] is None and status(slow)["weights_state"] == "clean"
    assert [(a["outcome"], a["reason"]) for a in audit_lines(slow)] == [("failed", "stopping")] * 2
    assert slow.stop() == 0


def test_a_completion_that_loads_its_model_is_told_to_come_again(slow):
    row = slow.register(MODELS / "tiny-llama")
    thread, got = in_thread(lambda: slow.post("/v1/completions", {"model": row["name"], "prompt": "The river"}))
    reads(slow)
    assert slow.stop() == 0
    thread.join(60)
    assert got[0].status == 503 and got[0].json()["error"]["code"] == "model_busy", got
    assert int(got[0].header("Retry-After")) >= 1
    assert row_status(slow.state, row["id"]) == "ready"


def test_the_base_of_a_run_is_read_no_further(slow):
    slow.register(MODELS / "tiny-llama")
    w = Weaver(slow).connect()
    body = {"model_seq_id": 1, "base_model": "tiny-llama", "lora_config": {"rank": 4}}
    thread, got = in_thread(lambda: w.call("POST", f"/sessions/{w.session}/models", body))
    reads(slow)
    assert slow.stop() == 0
    thread.join(60)
    assert got[0].status == 503, got
    assert (got[0].json()["error"], got[0].json()["retryable"]) == ("server_restarted", True), got


def test_a_stop_comes_through_while_the_first_model_is_loaded(slow, tmp_path):
    row = slow.register(MODELS / "tiny-llama")["id"]
    assert slow.stop() == 0
    with open(tmp_path / "log", "w+") as log:
        process = subprocess.Popen([str(FAULTS), "serve", "--port", "0"], env={**slow.env, "AUTO_LOAD_MODEL": str(row)},
                                   cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log)
        slow.process = process
        try:
            reads(slow)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        text = log.read()
    assert "auto_load_failed" in text and "being stopped" in text and "model_loaded" not in text
    assert row_status(slow.state, row) == "ready"


def test_a_merge_for_an_export_goes_no_further_and_can_be_asked_for_again(make_server, tmp_path):
    server = make_server({**ENV, "CAIRN": str(FAULTS), "WEIGHTS_TEST_WRITE_DELAY_MS": "4000"}, model=None,
                         state=tmp_path / "state")  # an export begins four seconds after its submission
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    path = f"/checkpoints/{Run(w, lora_config={'rank': 4}).save()['id']}"
    envelope = w.post(path + "/export", {"merge_adapter": True}, 202)
    assert server.stop() == 0
    server.env["CAIRN"] = os.environ.get("CAIRN", str(ROOT / "build/cairn"))
    del server.env["WEIGHTS_TEST_WRITE_DELAY_MS"]
    server.start()
    assert w.wait(w.get(f"/operations/{envelope['id']}"), "error")["error"] == "server_restarted"
    assert not [a for a in w.get(path + "/artifacts")["items"] if a["status"] == "completed"]
    assert w.run(path + "/export", {"merge_adapter": True})["kind"] == "hf_model"
    assert server.stop() == 0
