"""What the end of a process leaves, in each phase, and what the next start makes of it."""
import contextlib
import json
import shutil
import signal
import sqlite3
import time

import pytest
from conftest import MODELS, wait_until
from test_weaver_promote import promote
from weaver_http import ENV, Run, Weaver, error


@pytest.fixture
def own(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    return server


@pytest.fixture
def w(own):
    return Weaver(own).connect()


def change(own, *statements):
    """As if the process had died between two of its writes."""
    with contextlib.closing(sqlite3.connect(own.state / "cairn.db")) as db, db:
        for sql, args in statements:
            db.execute(sql, args)


def directory(own, c):
    return own.state / "weaver" / c["model_id"] / c["id"]


def forget_base(own):
    """Takes the row of the base out of the catalogue; its id."""
    row = next(m["id"] for m in own.get("/api/models").json()["data"] if m["name"] == "tiny-llama")
    assert own.call("DELETE", f"/api/models/{row}").status in (200, 204)
    return row


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_had_not_ended_says_that_the_server_was_restarted(own, w, how):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    run.seq = 70  # waits for its predecessor
    ops = [w.post(run.path + "/forward-backward-passes", run.backward_body()), w.post(run.path + "/optimizer-steps", run.adam_body()),
           w.post(run.path + "/checkpoints", {"type": "weight"})]
    own.stop(how)
    own.start()
    for op in ops:
        end = w.get(f"/operations/{op['id']}")
        assert (end["status"], end["error"], end["retryable"]) == ("error", "server_restarted", True), end
    assert w.get(run.path)["status"] == "lost" and run.checkpoints() == []


def test_a_save_is_done_once_its_checkpoint_is(own, w):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    saved = w.post(run.path + "/checkpoints", {"type": "weight", "name": "whole"})
    exported = w.post(run.path + "/export-sampler", {"path": "out"})
    want = [w.wait(op) for op in (saved, exported)]
    own.stop(signal.SIGKILL)
    change(own, ("UPDATE weaver_operations SET status = 'pending', response = NULL, ended_ms = NULL", ()))
    own.start()
    assert [w.wait(w.get(f"/operations/{op['id']}")) for op in (saved, exported)] == want


@pytest.mark.parametrize("phase", ["pending", "completed"])
def test_an_export_that_had_only_saved_is_not_done(own, w, phase):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    op = w.post(run.path + "/export-hf", {"ttl_seconds": None})
    artifact = w.wait(op)
    own.stop(signal.SIGKILL)
    change(own, ("UPDATE weaver_operations SET status = 'pending', response = NULL WHERE id = ?", (op["id"],)),
           ("UPDATE weaver_checkpoints SET status = ?", (phase,)), ("UPDATE weaver_artifacts SET status = 'pending', manifest = NULL", ()))
    own.start()
    assert w.wait(w.get(f"/operations/{op['id']}"), "error")["error"] == "server_restarted"
    assert w.get(f"/checkpoints/{artifact['checkpoint_id']}/artifacts")["items"] == []
    assert not (own.state / "weaver/.artifacts" / artifact["id"]).exists()
    assert w.run(f"/checkpoints/{artifact['checkpoint_id']}/export", {"ttl_seconds": None})["kind"] == "hf_adapter"


def test_files_of_what_was_deleted_do_not_stay(own, w):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    kept, gone = run.save(name="kept"), run.save(name="gone")
    a = w.run(f"/checkpoints/{kept['id']}/export", {})
    own.stop(signal.SIGKILL)
    change(own, ("UPDATE weaver_checkpoints SET status = 'deleted', deleted_ms = ? WHERE id = ?", (int(time.time() * 1000), gone["id"])),
           ("UPDATE weaver_artifacts SET status = 'deleted' WHERE id = ?", (a["id"],)))
    assert directory(own, gone).exists() and (own.state / "weaver/.artifacts" / a["id"]).exists()
    own.start()
    assert directory(own, kept).exists() and not directory(own, gone).exists()
    assert not (own.state / "weaver/.artifacts" / a["id"]).exists()
    error(w.call("GET", f"/checkpoints/{gone['id']}"), 410, "checkpoint_expired")


def test_a_row_follows_the_expiry_that_its_file_tells(own, w):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    c = run.save(name="kept", ttl_seconds=600)
    a = w.run(f"/checkpoints/{c['id']}/export", {"ttl_seconds": None})
    (directory(own, c) / "expiry.json").write_text('{"ttl_seconds": null, "expires_at": null, "expires_ms": null}\n')
    own.stop(signal.SIGKILL)
    past = int(time.time() * 1000) - 1000
    change(own, ("UPDATE weaver_checkpoints SET expires_ms = ?", (past,)))
    own.start()
    wait_until(lambda: [k["path"] for k in run.checkpoints()] == [c["path"]])
    assert run.checkpoints()[0]["ttl_seconds"] is None and run.checkpoints()[0]["expires_at"] is None
    assert run.load(c["path"])["checkpoint_id"] == c["id"] and w.get(f"/artifacts/{a['id']}")["expires_at"] is None


def test_a_run_comes_back_on_a_base_that_was_registered_anew(own, w):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    run.train(1)
    c, at = run.save("weight_and_optimizer"), run.logprobs()
    own.stop()
    own.start()
    row = forget_base(own)
    error(w.call("POST", run.path + "/load", {"path": c["path"]}), 404, "base_model_not_found")
    assert own.register(MODELS / "tiny-llama") != row
    run.load(c["path"], True)
    assert run.logprobs() == at
    run.seq = 0
    assert run.train(1)


def test_all_weights_of_another_base_of_the_same_name_are_refused(make_server, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(MODELS / "tiny-llama", base)
    own = make_server(ENV, model=None, state=tmp_path / "state")
    own.register(base)
    w = Weaver(own).connect()
    old = Run(w, "base", training_mode="full_ft")
    old.train(1, 1e-3)
    c = old.save("weight_and_optimizer")
    own.stop()
    shutil.rmtree(base)
    shutil.copytree(MODELS / "tiny-qwen2", base)
    own.start()
    run = Run(w, "base", training_mode="full_ft")
    at = run.logprobs()
    for optimizer in (False, True):
        end = w.wait(w.post(run.path + "/load", {"path": c["path"], "include_optimizer": optimizer}), "error")
        assert end["error"] == "checkpoint_incompatible" and "base" in end["error_message"]
    assert run.logprobs() == at and run.train(1)


def test_a_checkpoint_whose_base_is_not_registered_is_not_promoted(own, w):
    run = Run(w, training_mode="full_ft")
    c = run.save(name="best")
    w.post(run.path + "/terminate")
    own.stop()
    own.start()
    forget_base(own)
    answer = promote(own, c["path"])
    body = answer.json()["error"]
    assert answer.status == 404 and body["code"] == "CHECKPOINT_NOT_FOUND", answer
    assert body["details"]["reason"] == "base_model_not_found" and "tiny-llama" in body["message"]
    own.register(MODELS / "tiny-llama")
    assert promote(own, c["path"]).status == 201


def test_checkpoints_are_listed_by_their_time(own, w):
    run = Run(w, lora_config={"rank": 2, "seed": 1})
    saved = [run.save(name=f"c{i}")["path"] for i in range(4)]
    own.stop()
    change(own, *[("UPDATE weaver_checkpoints SET created_ms = ?, rowid = rowid + ? WHERE slug = ?", (1000 + i, 100 - 10 * i, f"c{i}"))
                  for i in range(4)])  # as a reindex finds the directories: in any order
    own.start()
    assert [c["path"] for c in run.checkpoints()] == saved
    assert [c["path"] for c in w.get("/checkpoints")["items"]] == saved[::-1]
    body = error(w.call("POST", run.path + "/checkpoints", {"type": "weight"}), 409, "model_lost")
    assert body["details"]["last_checkpoint"] == saved[-1]
