"""What a test build can be told to do wrong (make faults): failing stages, slow writes, a file that changes."""
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from conftest import FAULTS, MODELS, OPERATOR, needs_faults, wait_until
from foreign import Foreign
from trainer import Trainer, ask, audit_lines, files_below, granted, load, refused, sha256, status

pytestmark = needs_faults


@pytest.fixture
def faulty(make_server):
    made = []

    def make(**env):
        server = make_server({"CAIRN": str(FAULTS), **env})
        made.append(server)
        return server

    yield make
    for server in made:
        assert server.stop() == 0


@pytest.mark.parametrize("stage", ["prepare", "weights", "companions", "manifest", "sync", "rename"])
def test_a_save_that_fails_before_the_rename_leaves_nothing(faulty, stage):
    server = faulty(WEIGHTS_TEST_FAIL=stage)
    holder = Trainer(server)
    refused(holder.save("run", 1), 500, "CHECKPOINT_WRITE_FAILED", stage=stage, published=False,
            path="run/step-000001")
    assert files_below(server.checkpoints / "run") == []
    assert status(server)["model"]["name"] == "tiny-llama" and status(server)["last_save"] is None
    assert granted(holder.save("run", 1), 201)["identity_set"] is True


@pytest.mark.parametrize("stage", ["sync_parent", "latest"])
def test_a_save_that_fails_after_the_rename_is_published_and_names_the_resident(faulty, stage):
    server = faulty(WEIGHTS_TEST_FAIL=stage)
    holder = Trainer(server)
    details = refused(holder.save("run", 1), 500, "CHECKPOINT_WRITE_FAILED", stage=stage, published=True,
                      identity_set=True, name="tiny-llama:run:step-1")
    assert sha256(server.checkpoints / "run/step-000001/model.safetensors") == details["weights_sha256"]
    assert status(server)["model"]["name"] == details["name"]
    assert granted(load(server, holder.id, path="run/step-000001"))["name"] == details["name"]


def test_a_commit_while_files_are_written_is_not_in_them(faulty):
    server = faulty(WEIGHTS_TEST_WRITE_DELAY_MS="2000")
    holder = Trainer(server)
    before, got = holder.digest(), []
    saving = threading.Thread(target=lambda: got.append(holder.save("run", 1)))
    saving.start()
    wait_until(lambda: status(server)["save_in_progress"])
    refused(holder.save("other", 1), 409, "PAUSE_IN_PROGRESS", held_by="save")
    assert [p.split("/")[0][:5] for p in files_below(server.checkpoints / "run")][0] == ".tmp-"
    holder.commit(0x0008)
    saving.join(60)
    data = granted(got[0], 201)
    assert data["weights_sha256"] == before != holder.digest()
    assert ask(server)[1] == f'"{data["name"]}";origin=checkpoint;commits=1'


def test_a_load_while_files_are_written_takes_the_name_away(faulty):
    server = faulty(WEIGHTS_TEST_WRITE_DELAY_MS="2000")
    holder = Trainer(server)
    first = granted(holder.save("run", 1), 201)
    holder.commit(0x0008)
    got = []
    saving = threading.Thread(target=lambda: got.append(holder.save("run", 2)))
    saving.start()
    wait_until(lambda: status(server)["save_in_progress"])
    granted(load(server, holder.id, name=first["name"]))
    saving.join(60)
    assert granted(got[0], 201)["identity_set"] is False
    assert status(server)["model"]["name"] == first["name"]


def is_open(server, file):
    return any(os.path.realpath(f) == str(file.resolve()) for f in Path(f"/proc/{server.process.pid}/fd").iterdir())


@pytest.mark.parametrize("attached", [True, False])
def test_a_file_that_changes_between_hash_and_barrier_is_refused(faulty, attached):
    server = faulty(WEIGHTS_TEST_VERIFY_DELAY_MS="2000")
    holder = Trainer(server)
    saved = granted(holder.save("run", 1), 201)
    holder.commit(0x0008)
    if not attached:
        holder.detach()
    before, got = ask(server), []
    loading = threading.Thread(
        target=lambda: got.append(load(server, holder.id if attached else None, name=saved["name"])))
    loading.start()
    file = server.checkpoints / "run/step-000001/model.safetensors"
    wait_until(lambda: is_open(server, file))
    time.sleep(0.2)
    os.utime(file)
    loading.join(60)
    refused(got[0], 422, "CHECKPOINT_HASH_MISMATCH", reason="file_changed", actual=None, changed="mtime",
            expected=saved["weights_sha256"])
    assert ask(server) == before and status(server)["weights_state"] == "clean"


def test_a_load_that_fails_after_the_first_write_stops_v1_until_the_next_load(faulty):
    server = faulty(WEIGHTS_TEST_FAIL="load_after_bytes:1000", WEIGHTS_LOAD_PREFETCH="false")
    holder = Trainer(server)
    saved = granted(holder.save("run", 1), 201)
    answer = ask(server)[0]
    refused(load(server, holder.id, name=saved["name"]), 500, "WEIGHTS_LOAD_FAILED", mode="in_place",
            weights_state="torn")
    for got in (server.complete(), server.chat(), server.get("/v1/models")):
        assert got.status == 503 and got.json()["error"]["code"] == "weights_torn"
    refused(holder.save("run", 2), 409, "WEIGHTS_NOT_CLEAN", weights_state="torn")
    granted(load(server, None, OPERATOR, name=saved["name"]))  # an operator may, while the weights are torn
    assert ask(server)[0] == answer and holder.digest() == saved["weights_sha256"]


def test_too_little_memory_refuses_a_save_and_an_unknown_figure_does_not(faulty):
    server = faulty(WEIGHTS_TEST_MEM_AVAILABLE="1000")
    details = refused(Trainer(server).save("run", 1), 507, "INSUFFICIENT_MEMORY", available_bytes=1000)
    assert details["required_bytes"] > details["snapshot_bytes"]
    other = faulty(WEIGHTS_TEST_MEM_AVAILABLE="unknown")
    granted(Trainer(other).save("run", 1), 201)


def test_a_row_that_fails_after_the_resident_gave_its_place_leaves_torn_weights(faulty, tmp_path):
    server = faulty(WEIGHTS_TEST_MEM_AVAILABLE="100000")
    shutil.copytree(MODELS / "tiny-qwen3", tmp_path / "broken")
    (tmp_path / "broken/tokenizer.json").write_text("{")
    row = server.register(tmp_path / "broken")["id"]
    refused(load(server, None, OPERATOR, model_id=row), 500, "WEIGHTS_LOAD_FAILED", stage="load", mode="full_reload",
            weights_state="torn")
    torn = status(server)
    assert torn["weights_state"] == "torn" and torn["model"] is None
    assert (torn["commit"]["kind"], torn["commit"]["identity"]) == ("load", "ops")
    line = audit_lines(server)[-1]
    assert (line["outcome"], line["state_before"], line["state_after"]) == ("failed", "clean", "torn")
    assert {r["id"]: r["status"] for r in granted(server.get("/api/models"))} == {row: "error", server.row: "ready"}
    refused(server.weights("attach"), 400, "MODEL_NOT_LOADED")
    details = refused(server.post(f"/api/models/{server.row}/load"), 409, "WEIGHTS_NOT_CLEAN", weights_state="torn")
    assert details["commit_started_at"] == torn["commit"]["started_at"]


def test_a_checkpoint_that_replaces_the_resident_first_leaves_its_row_ready(faulty):
    server = faulty(WEIGHTS_TEST_MEM_AVAILABLE="100000", WEIGHTS_LOAD_PREFETCH="false")
    ckpt = Foreign(server.checkpoints, base="org/smaller", model=MODELS / "tiny-qwen3")
    assert granted(load(server, path=ckpt.path))["mode"] == "full_reload"
    carrier = status(server)["model"]["row_id"]
    assert {r["id"]: r["status"] for r in granted(server.get("/api/models"))} == {server.row: "ready", carrier: "loaded"}
    assert server.call("DELETE", f"/api/models/{server.row}").status == 200


@pytest.mark.parametrize("kind", ["path", "model_id"])
def test_memory_that_ends_at_the_swap_of_a_reload_leaves_torn_weights_and_a_load_mends(faulty, kind):
    server = faulty(WEIGHTS_TEST_FAIL="load_name", WEIGHTS_TEST_MEM_AVAILABLE="310000", WEIGHTS_LOAD_PREFETCH="false")
    body = {"path": Foreign(server.checkpoints, base="org/larger", model=MODELS / "tiny-lfm2").path}
    if kind == "model_id":
        body = {"model_id": server.register(MODELS / "tiny-lfm2")["id"]}
    refused(load(server, None, OPERATOR, **body), 500, "WEIGHTS_LOAD_FAILED", mode="full_reload", weights_state="torn")
    torn = status(server)
    assert torn["weights_state"] == "torn" and torn["model"] is None and torn["serving"] == "refused"
    assert audit_lines(server)[-1]["state_after"] == "torn"
    got = server.complete()
    assert got.status == 503 and got.json()["error"]["code"] == "weights_torn"
    granted(load(server, None, OPERATOR, model_id=server.row))
    assert status(server)["weights_state"] == "clean" and status(server)["serving"] == "serving"
    assert ask(server)[1].startswith('"tiny-llama"')
    granted(load(server, None, OPERATOR, **body))
    assert status(server)["weights_state"] == "clean" and status(server)["model"]["name"] != "tiny-llama"


def test_where_memory_holds_one_model_the_resident_gives_its_place(faulty):
    server = faulty(WEIGHTS_TEST_MEM_AVAILABLE="100000")  # tiny-llama has 272,200 bytes
    smaller = server.register(MODELS / "tiny-qwen3")["id"]  # 218,352
    larger = server.register(MODELS / "tiny-lfm2")["id"]  # 344,064
    plan = granted(server.weights("plan/load", {"model_id": smaller}, token=OPERATOR))
    assert plan["way"] == "reload"
    granted(load(server, None, OPERATOR, model_id=smaller))
    refused(load(server, None, OPERATOR, model_id=larger), 507, "INSUFFICIENT_MEMORY", available_bytes=100000)
    assert ask(server)[1].startswith('"tiny-qwen3"')
    granted(load(server, None, OPERATOR, model_id=server.row))
    assert ask(server)[1].startswith('"tiny-llama"')


@pytest.mark.parametrize("point", ["detach_save", "detach_copy"])
def test_a_detach_without_memory_changes_nothing_and_the_next_one_works(faulty, point):
    server = faulty(WEIGHTS_TEST_FAIL=point, WEIGHTS_TEST_WRITE_DELAY_MS="1000")
    holder = Trainer(server)
    before, answer, got = holder.digest(), ask(server)[0], []
    saving = threading.Thread(target=lambda: got.append(holder.save("run", 1)))
    saving.start()
    wait_until(lambda: status(server)["save_in_progress"])
    details = refused(holder.call("detach"), 507, "INSUFFICIENT_MEMORY")
    assert details["snapshot_bytes"] > 0 and "The attachment stays" in details["user_message"]
    assert status(server)["attached"] and status(server)["weights_state"] == "clean"
    assert ask(server)[0] == answer
    holder.do("heartbeat")
    assert holder.detach()["weights_state"] == "clean"
    holder.write(0x0008)  # who has detached still has the memory, and is bound by nothing
    saving.join(60)
    saved = granted(got[0], 201)
    assert saved["weights_sha256"] == before == sha256(server.checkpoints / saved["path"] / "model.safetensors")
    assert ask(server, saved["name"])[0] == answer


def test_a_forced_detach_without_memory_leaves_the_open_commit_to_its_holder(faulty):
    server = faulty(WEIGHTS_TEST_FAIL="detach_copy", WEIGHTS_HEARTBEAT_TIMEOUT_S="0.2")
    holder = Trainer(server)
    holder.do("quiesce")
    holder.do("commit-begin")
    wait_until(lambda: status(server)["attachment"]["state"] == "stale")
    refused(server.weights("detach", {"force": True}, token=OPERATOR), 507, "INSUFFICIENT_MEMORY")
    assert status(server)["weights_state"] == "writing"
    wait_until(lambda: status(server)["attachment"]["state"] == "stale")
    assert granted(server.weights("detach", {"force": True}, token=OPERATOR))["weights_state"] == "torn"
    assert not status(server)["attached"]
    granted(load(server, None, model_id=server.row))
