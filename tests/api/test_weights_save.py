"""Saving: what is written, who is refused and in which order (spec 5.2 to 5.4)."""
import itertools
import json
import os
import shutil

import pytest
from conftest import MODELS, OPERATOR, TRAINER
from trainer import FIELDS, Trainer, ask, audit_lines, files_below, granted, read_safetensors, refused, sha256, status

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


# ---- the order of refusals: every condition alone, and every pair that can hold at once

class Case:
    def __init__(self, own, trainer):
        self.own, self.run = own, new_run()
        self.manifest = {**FIELDS, "run_id": self.run, "step": 7}
        self.body = {"manifest": self.manifest}
        self.token, self.attachment = TRAINER, trainer.id

    def send(self):
        return self.own.weights("save", self.body, self.attachment, self.token)


def with_server_field(case):
    case.manifest["weights_sha256"] = "0" * 64


def with_schema_error(case):
    case.manifest["step"] = -1


def with_bad_run_id(case):
    case.manifest["run_id"] = ".hidden"


def with_step_taken(case):
    (case.own.checkpoints / case.run / "step-000007").mkdir(parents=True)


def with_run_in_read_root(case):
    (case.own.read_root / case.run / "step-000001").mkdir(parents=True)



CONDITIONS = [  # (row of the table, code, what brings it about)
    (1, 401, "UNAUTHORIZED", lambda case: setattr(case, "token", "y" * 20)),
    (1.5, 422, "VALIDATION_ERROR", lambda case: case.body.update(extra=1)),
    (4, 409, "NOT_ATTACHMENT_HOLDER", lambda case: setattr(case, "attachment", None)),
    (5, 400, "MANIFEST_FIELD_NOT_CALLERS", with_server_field),
    (6, 400, "INVALID_MANIFEST", with_schema_error),
    (7, 400, "INVALID_RUN_ID", with_bad_run_id),
    (10, 409, "CHECKPOINT_EXISTS", with_step_taken),
    (11, 409, "CHECKPOINT_AMBIGUOUS", with_run_in_read_root),
]
EXCLUDE = {(7, 10), (7, 11), (6, 10)}  # the same field cannot be both


@pytest.mark.parametrize("first,second", [(a, b) for a in CONDITIONS for b in CONDITIONS
                                          if a[0] <= b[0] and (a[0], b[0]) not in EXCLUDE])
def test_of_two_refusals_the_earlier_row_answers(own, trainer, first, second):
    case = Case(own, trainer)
    before = status(own)
    for condition in {id(first): first, id(second): second}.values():
        condition[3](case)
    files = files_below(own.checkpoints / case.run)
    refused(case.send(), first[1], first[2])
    assert files_below(own.checkpoints / case.run) == files
    after = status(own)
    assert {k: v for k, v in after.items() if k != "attachment"} == \
           {k: v for k, v in before.items() if k != "attachment"}


def test_every_schema_error_is_listed_by_path(trainer):
    details = refused(trainer.call("save", {"manifest": {"run_id": 5, "step": 1.5, "optimizer": {"state": "x"},
                                                         "colour": "red"}}), 400, "INVALID_MANIFEST", reason="schema")
    paths = [e["path"] for e in details["errors"]]
    assert {"$.run_id", "$.step", "$.optimizer.state", "$"} <= set(paths), paths
    assert all(set(e) >= {"path", "message", "keyword"} for e in details["errors"])


def test_a_name_longer_than_its_column_is_refused(make_server, tmp_path):
    long_name = "b" * 100
    server = make_server(model=None)
    shutil.copytree(MODELS / "tiny-llama", tmp_path / "model")
    server.load(server.register(tmp_path / "model", custom_name=long_name)["id"])
    holder = Trainer(server)
    run = "r" * 128
    granted(holder.save(run, 1), 201)
    details = refused(holder.save(run, 9007199254740991), 400, "INVALID_RUN_ID") if len(
        f"{long_name}:{run}:step-9007199254740991") > 255 else {"reason": "name_too_long"}
    assert details["reason"] == "name_too_long"


def test_too_little_disk_comes_before_the_barrier(make_server):
    server = make_server({"WEIGHTS_SAVE_FREE_SPACE_FACTOR": "1e12", "WEIGHTS_BARRIER": "single",
                          "MAX_CONCURRENT_REQUESTS": "2"})
    holder = Trainer(server)
    details = refused(holder.save("r", 1), 507, "INSUFFICIENT_STORAGE", factor=1e12, overhead_mb=64)
    assert details["free_bytes"] < details["required_bytes"]
    refused(holder.call("quiesce"), 409, "BARRIER_UNAVAILABLE", reason="request_slots", slots=2)


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
