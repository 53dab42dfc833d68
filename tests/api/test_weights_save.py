"""Saving: what is written, who is refused and in which order (spec 5.2 to 5.4)."""
import itertools
import json
import os

import pytest
from conftest import MODELS, OPERATOR
from trainer import Trainer, ask, audit_lines, granted, read_safetensors, refused, sha256, status

COUNTER = itertools.count(1)


@pytest.fixture(scope="module")
def own(make_server, tmp_path_factory):
    read_root = tmp_path_factory.mktemp("read")
    server = make_server({"WEIGHTS_CHECKPOINT_READ_ROOTS": str(read_root)})
    server.read_root = read_root
    return server


@pytest.fixture(scope="module")
def trainer(own):
    return Trainer(own)


def new_run():
    return f"run-{next(COUNTER)}"


def test_a_save_is_a_whole_directory_of_the_very_bytes(own, trainer):
    run = new_run()
    trainer.commit(0x0010)
    data = granted(trainer.save(run, 500), 201)
    assert data["name"] == f"tiny-llama:{run}:step-500" and data["path"] == f"{run}/step-000500"
    assert data["identity_set"] is True and data["latest"] == "step-000500" and data["snapshot_ms"] >= 0
    home = own.checkpoints / data["path"]
    assert os.readlink(own.checkpoints / run / "latest") == "step-000500"
    assert sha256(home / "model.safetensors") == data["weights_sha256"] == trainer.digest()
    assert sha256(home / "manifest.json") == data["manifest_sha256"]
    assert (home / "model.safetensors").stat().st_size == data["bytes"]
    manifest = json.loads((home / "manifest.json").read_text())
    assert manifest["name"] == data["name"] and manifest["weights_sha256"] == data["weights_sha256"]
    config = json.loads((home / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    source = MODELS / "tiny-llama"
    assert (home / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert list(read_safetensors(home / "model.safetensors")) == list(read_safetensors(source / "model.safetensors"))
    assert {p.name for p in home.iterdir()} >= {"generation_config.json", "tokenizer_config.json"}


def test_the_resident_takes_the_name_and_commits_start_again(own, trainer):
    run = new_run()
    before = status(own)
    data = granted(trainer.save(run, 1), 201)
    after = status(own)
    assert after["model"]["name"] == data["name"] and after["model"]["origin"] == "checkpoint"
    assert after["commits"] == 0 and after["steps_since_load"] == before["steps_since_load"]
    assert after["last_save"]["weights_sha256"] == data["weights_sha256"]
    assert ask(own)[1] == f'"{data["name"]}";origin=checkpoint;commits=0'
    trainer.commit(0x0001)
    assert ask(own)[1] == f'"{data["name"]}";origin=checkpoint;commits=1'
    second = granted(trainer.save(run, 2, parent=data["name"]), 201)
    assert second["parent_check"] == "match"
    third = granted(trainer.save(run, 3, parent="x:y:step-1"), 201)
    assert third["parent_check"] == "mismatch"


def test_a_quiesced_holder_stays_quiesced(own, trainer):
    trainer.do("quiesce")
    granted(trainer.save(new_run(), 1), 201)
    assert status(own)["serving"] == "quiesced"
    trainer.do("resume")


def test_a_run_that_cannot_be_a_directory_fails_in_the_first_stage(own, trainer):
    (own.checkpoints / "out").symlink_to("/etc")
    (own.checkpoints / "loop").symlink_to("loop")
    (own.checkpoints / "nowhere").symlink_to("no-such-directory")
    (own.checkpoints / "file").write_text("x")
    for run in ("out", "loop", "nowhere", "file"):
        refused(trainer.save(run, 1), 500, "CHECKPOINT_WRITE_FAILED", stage="prepare", published=False,
                path=f"{run}/step-000001")
    assert status(own)["save_in_progress"] is None
    granted(trainer.save(new_run(), 1), 201)


def test_every_schema_error_is_listed_by_path(trainer):
    details = refused(trainer.call("save", {"manifest": {"run_id": 5, "step": 1.5, "optimizer": {"state": "x"},
                                                         "colour": "red"}}), 400, "INVALID_MANIFEST", reason="schema")
    paths = [e["path"] for e in details["errors"]]
    assert {"$.run_id", "$.step", "$.optimizer.state", "$"} <= set(paths), paths
    assert all(set(e) >= {"path", "message", "keyword"} for e in details["errors"])


def test_an_unusable_schema_refuses_saves_and_loads(make_server, tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {"step": {"type": "integer"}}}')
    server = make_server({"WEIGHTS_SCHEMA_FILE": str(tmp_path / "schema.json")})
    refused(server.weights("save", {"manifest": {}}), 400, "INVALID_MANIFEST", reason="schema_ownership")
    refused(server.weights("load", {"path": "a/step-000001"}), 400, "INVALID_MANIFEST", reason="schema_ownership")
    granted(server.weights("load", {"model_id": server.row}))
    assert "schema_ownership" in server.log_text()


def test_each_save_leaves_one_audit_line(own, trainer):
    run = new_run()
    done = trainer.save(run, 1)
    bad = own.weights("save", {"manifest": {}}, None, "z" * 20)
    op = own.weights("save", {"manifest": {}}, None, OPERATOR)
    by_id = {}
    for line in audit_lines(own):
        by_id.setdefault(line["request_id"], []).append(line)
    for answer, outcome, identity in ((done, "accepted", "forge"), (bad, "refused", None), (op, "refused", "ops")):
        lines = by_id[answer.header("X-Request-ID")]
        assert len(lines) == 1 and lines[0]["outcome"] == outcome and lines[0]["identity"] == identity
        assert lines[0]["http_status"] == answer.status and lines[0]["operation"] == "weights_save"
    line = by_id[done.header("X-Request-ID")][0]
    assert line["checkpoint"] == done.json()["data"]["name"]
    assert line["weights_sha256"] == done.json()["data"]["weights_sha256"]
