"""Several exports of one checkpoint at the same moment, and its end meanwhile."""
import hashlib
import threading
import urllib.request

import pytest
from conftest import FAULTS, MODELS, needs_faults, wait_until
from weaver_http import ENV, Run, Weaver, error


def connect(server):
    server.register(MODELS / "tiny-llama")
    return Weaver(server).connect()


def whole(w, artifact):
    """Every file of the artifact is served with the size and hash that it tells."""
    files = w.get(f"/artifacts/{artifact['id']}/download")["files"]
    assert {f["name"] for f in files} >= {"adapter_config.json", "adapter_model.safetensors"}
    for f in files:
        with urllib.request.urlopen(f["url"]) as got:
            data = got.read()
        assert len(data) == f["size"] and hashlib.sha256(data).hexdigest() == f["sha256"]


def test_of_exports_that_are_forced_at_once_the_newest_stays(make_server):
    w = connect(make_server(ENV, model=None))
    path = f"/checkpoints/{Run(w, lora_config={'rank': 1, 'seed': 3}).save()['id']}"
    for _ in range(6):
        made = []
        at_once = [threading.Thread(target=lambda: made.append(w.run(path + "/export", {"force": True}))) for _ in range(6)]
        for t in at_once:
            t.start()
        for t in at_once:
            t.join()
        newest = max(made, key=lambda a: (a["created_at"], a["id"]))
        left = [a for a in w.get(path + "/artifacts")["items"] if a["status"] == "completed"]
        assert len(made) == 6 and newest["id"] in [a["id"] for a in left]
        assert w.get(f"/artifacts/{newest['id']}/download")["files"]


@pytest.fixture
def slow(make_server):
    """An export begins a second and a half after its submission."""
    return connect(make_server({**ENV, "CAIRN": str(FAULTS), "WEIGHTS_TEST_WRITE_DELAY_MS": "1500"}, model=None))


@needs_faults
def test_a_checkpoint_is_in_use_from_the_submission_of_an_export(slow):
    path = f"/checkpoints/{Run(slow, lora_config={'rank': 1}).save()['id']}"
    envelope = slow.post(path + "/export", {}, 202)
    error(slow.call("DELETE", path), 409, "checkpoint_in_use")
    whole(slow, slow.wait(envelope))
    assert slow.call("DELETE", path).status == 204
    error(slow.call("POST", path + "/export", {"force": True}), 410, "checkpoint_expired")


@needs_faults
def test_an_export_that_was_submitted_before_the_expiry_ends_normally(slow):
    made = Run(slow, lora_config={"rank": 1}).save(ttl_seconds=1)
    envelope = slow.post(f"/checkpoints/{made['id']}/export", {"ttl_seconds": 3600}, 202)
    whole(slow, slow.wait(envelope))
    wait_until(lambda: slow.call("GET", f"/checkpoints/{made['id']}").status == 410)


def test_of_an_export_and_a_delete_at_once_each_is_done_or_refused(make_server):
    w = connect(make_server(ENV, model=None))
    run = Run(w, lora_config={"rank": 1})
    for i in range(40):
        path = f"/checkpoints/{run.save()['id']}"
        got, start = {}, threading.Barrier(2)

        def at_once(method, where):
            start.wait()
            got[method] = w.call(method, where, {} if method == "POST" else None)

        both = [threading.Thread(target=at_once, args=a) for a in (("POST", path + "/export"), ("DELETE", path))]
        for t in both[::1 if i % 2 else -1]:
            t.start()
        for t in both:
            t.join()
        export, delete = got["POST"], got["DELETE"]
        if export.status < 300:
            whole(w, w.wait(export.json()))
        else:
            error(export, 410, "checkpoint_expired")
        if delete.status != 204:
            error(delete, 409, "checkpoint_in_use")
        assert export.status < 300 or delete.status == 204
