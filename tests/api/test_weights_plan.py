"""Plans: what a save or a load would do. The plan says what the call then does, and itself changes nothing."""
import itertools

import pytest
from conftest import MODELS, OPERATOR, TRAINER
from trainer import FIELDS, Trainer, ask, audit_lines, files_below, granted, load, refused, status

STEPS = itertools.count(1)


@pytest.fixture(scope="module")
def own(make_server):
    return make_server()


@pytest.fixture
def trainer(own):
    trainer = Trainer(own)
    yield trainer
    trainer.detach()


def plan_load(server, attachment=None, token=TRAINER, **body):
    return server.weights("plan/load", body, attachment, token)


def everything(server):
    """All that a plan must leave alone; last_seen_at moves with any call of the holder."""
    seen = status(server)
    if seen["attachment"]:
        del seen["attachment"]["last_seen_at"]
    rows = granted(server.get("/api/models"))
    return seen, rows, files_below(server.checkpoints), ask(server)


def manifest(step, **fields):
    return {"manifest": {**FIELDS, "run_id": "plans", "step": step, **fields}}


def test_the_plan_of_a_save_says_what_the_save_then_writes(own, trainer):
    step, parent = next(STEPS), status(own)["model"]
    body = manifest(step, parent=parent["name"] if parent["origin"] == "checkpoint" else None)
    before, arena = everything(own), trainer.digest()
    plan = granted(trainer.call("plan/save", body))
    assert (everything(own), trainer.digest()) == (before, arena)
    assert plan["free_bytes"] > plan["bytes"] and plan["root"] == str(own.checkpoints)
    saved = granted(trainer.call("save", body), 201)
    assert {k: plan[k] for k in ("name", "path", "bytes", "parent_check", "latest")} == \
        {k: saved[k] for k in ("name", "path", "bytes", "parent_check", "latest")}


@pytest.mark.parametrize("body, token, attached, status_code, code", [
    (manifest(900), "wrong", True, 401, "UNAUTHORIZED"),
    ({"manifest": {}, "plan": True}, TRAINER, True, 422, "VALIDATION_ERROR"),
    (manifest(900), TRAINER, False, 409, "NOT_ATTACHMENT_HOLDER"),
    (manifest(900, name="x"), TRAINER, True, 400, "MANIFEST_FIELD_NOT_CALLERS"),
    (manifest(900, signal_source="x"), TRAINER, True, 400, "INVALID_MANIFEST"),
    (manifest(900, run_id="../x"), TRAINER, True, 400, "INVALID_RUN_ID"),
    (manifest(901), TRAINER, True, 409, "CHECKPOINT_EXISTS")])
def test_the_plan_of_a_save_is_refused_as_the_save_is(own, trainer, body, token, attached, status_code, code):
    (own.checkpoints / "plans/step-000901").mkdir(parents=True, exist_ok=True)
    before, header = everything(own), trainer.id if attached else None
    planned = refused(own.weights("plan/save", body, header, token), status_code, code)
    assert planned == refused(own.weights("save", body, header, token), status_code, code)
    assert everything(own) == before


def test_a_save_is_not_planned_while_a_commit_is_open(own, trainer):
    trainer.do("quiesce")
    trainer.do("commit-begin")
    refused(trainer.call("plan/save", manifest(902)), 409, "WEIGHTS_NOT_CLEAN", weights_state="writing")
    refused(plan_load(own, trainer.id, model_id=own.row), 409, "WEIGHTS_NOT_CLEAN")
    trainer.do("commit-end")
    trainer.do("resume")


@pytest.fixture
def saved(own):
    """A checkpoint that stands on disk, and unsaved commits after it."""
    trainer = Trainer(own)
    data = granted(trainer.save("plans", next(STEPS) + 100), 201)
    trainer.commit(0x0008)
    trainer.detach()
    return data


@pytest.mark.parametrize("attached, way", [(True, "copy"), (False, "swap")])
def test_the_plan_of_a_load_says_what_the_load_then_does(own, saved, attached, way):
    trainer = Trainer(own) if attached else None
    before = everything(own)
    plan = granted(plan_load(own, trainer and trainer.id, name=saved["name"]))
    assert everything(own) == before
    assert plan["way"] == way and plan["discards_commits"] == 1 and plan["verify_ms"] > 0
    loaded = granted(load(own, trainer and trainer.id, name=saved["name"]))
    assert {k: plan[k] for k in ("name", "mode", "weights_sha256", "manifest_sha256")} == \
        {k: loaded[k] for k in ("name", "mode", "weights_sha256", "manifest_sha256")}
    assert plan["mode"] == "in_place" and plan["bytes"] == saved["bytes"]
    if trainer:
        trainer.detach()


def test_without_room_for_a_second_image_the_plan_says_reload(make_server):
    server = make_server({"WEIGHTS_LOAD_PREFETCH": "0"})
    trainer = Trainer(server)
    saved = granted(trainer.save("plans", 1), 201)
    trainer.detach()
    assert granted(plan_load(server, name=saved["name"]))["way"] == "copy"
    other = server.register(MODELS / "tiny-qwen2")
    server.load(other["id"])
    before = granted(server.get("/api/models"))
    plan = granted(plan_load(server, name=saved["name"]))
    assert (plan["mode"], plan["way"]) == ("full_reload", "reload")
    assert granted(server.get("/api/models")) == before, "no carrier row is made"


def test_the_plan_of_a_row_says_its_size(own):
    before = everything(own)
    plan = granted(plan_load(own, model_id=own.row))
    assert (plan["mode"], plan["way"], plan["weights_sha256"]) == ("full_reload", "swap", None)
    assert plan["name"] == "tiny-llama" and plan["bytes"] > 0
    refused(plan_load(own, model_id=own.row, gpu="cuda:0"), 404, "GPU_NOT_FOUND")
    refused(plan_load(own, model_id=999), 404, "MODEL_NOT_FOUND")
    assert everything(own) == before


def test_a_damaged_checkpoint_is_found_by_the_plan(own, saved):
    file = own.checkpoints / saved["path"] / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    before = everything(own)
    details = refused(plan_load(own, name=saved["name"]), 422, "CHECKPOINT_HASH_MISMATCH")
    assert details == refused(load(own, name=saved["name"]), 422, "CHECKPOINT_HASH_MISMATCH")
    assert everything(own) == before


def test_a_row_whose_files_are_gone_is_found_by_the_plan(own, tmp_path):
    (tmp_path / "m").mkdir()
    for f in (MODELS / "tiny-qwen2").iterdir():
        (tmp_path / "m" / f.name).write_bytes(f.read_bytes())
    row = own.register(tmp_path / "m")
    (tmp_path / "m/model.safetensors").unlink()
    before = everything(own)
    refused(plan_load(own, model_id=row["id"]), 500, "MODEL_LOAD_FAILED")
    assert everything(own) == before


def test_plans_leave_audit_lines_of_their_own(own, trainer):
    before = len(audit_lines(own))
    refused(plan_load(own, token=OPERATOR, model_id=own.row), 409, "ALREADY_ATTACHED")
    granted(trainer.call("plan/save", manifest(950)))
    lines = audit_lines(own)[before:]
    assert [(line["operation"], line["outcome"]) for line in lines] == \
        [("weights_plan_load", "refused"), ("weights_plan_save", "accepted")]
    assert lines[1]["run_id"] == "plans" and lines[1]["step"] == 950 and lines[1]["weights_sha256"] is None
