"""Known failures of other servers as tests: loads of the wrong thing, stale caches, order by text, full disks, paths
(S16 to S20, S32; tests/vectors/cases)."""
import itertools
import json
import os
import resource
import shutil
import threading

import pytest
from conftest import CASES, MODELS
from trainer import FIELDS, Trainer, ask, files_below, granted, load, refused, sha256, status

COUNTER = itertools.count(1)
REASONS = {"dtype", "incomplete", "remote_code", "quantized", "unsafe_file", "safetensors_header"}


@pytest.fixture(scope="module")
def own(make_server):
    return make_server()


def rows(table):
    return [line.split("\t") for line in (CASES / table).read_text().splitlines()[1:]]


def checkpoint_of(server, directory, base="org/case"):
    """A model directory as a checkpoint whose manifest is right."""
    run = f"case-{next(COUNTER)}"
    home = server.checkpoints / run / "step-000001"
    shutil.copytree(directory, home, symlinks=True)
    weights = home / "model.safetensors"
    manifest = {"name": f"{base}:{run}:step-1", "base_model": base, "run_id": run, "step": 1,
                "created_at": "2026-10-01T08:00:00Z", "domain": "d", "signal_source": "corpus", "parent": None,
                "optimizer": {"name": "sgd", "state": "fresh"},
                "weights_sha256": sha256(weights) if weights.is_file() else "0" * 64}
    (home / "manifest.json").write_text(json.dumps(manifest))
    return home


@pytest.mark.parametrize("directory,outcome", [(r[0], r[1]) for r in rows("model_dirs.tsv")
                                               if r[1].startswith("refuse")])
def test_a_directory_that_must_be_refused_changes_nothing(own, directory, outcome):
    home = checkpoint_of(own, CASES / directory)
    before, answer = status(own), ask(own)
    details = refused(load(own, path=str(home)), 400, "CHECKPOINT_NOT_LOADABLE")
    word = outcome.split(":")[1]
    assert details["reason"] in REASONS
    if word in REASONS and (home / "model.safetensors").exists():
        assert details["reason"] == word, details
    assert status(own) == before and ask(own) == answer


@pytest.mark.parametrize("name", sorted(p.name for p in (CASES / "st").glob("*.safetensors"))[:200])
def test_a_weight_file_that_is_damaged_is_refused_and_streams_go_on(own, name):
    home = checkpoint_of(own, MODELS / "tiny-llama")
    shutil.copy(CASES / "st" / name, home / "model.safetensors")
    manifest = json.loads((home / "manifest.json").read_text())
    manifest["weights_sha256"] = sha256(home / "model.safetensors")
    (home / "manifest.json").write_text(json.dumps(manifest))
    refused(load(own, path=str(home)), 400, "CHECKPOINT_NOT_LOADABLE")
    assert status(own)["weights_state"] == "clean"


def test_streams_and_answers_are_whole_while_wrong_things_are_loaded(own):
    _, expected = own.stream("/v1/completions", {"prompt": "x", "max_tokens": 64, "temperature": 0})
    stop, wrong = threading.Event(), []

    def keep_asking():
        while not stop.is_set():
            _, chunks = own.stream("/v1/completions", {"prompt": "x", "max_tokens": 64, "temperature": 0})
            if [c["choices"] for c in chunks] != [c["choices"] for c in expected]:
                wrong.append(chunks)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    try:
        for directory, outcome in [(r[0], r[1]) for r in rows("model_dirs.tsv") if r[1].startswith("refuse")]:
            refused(load(own, path=str(checkpoint_of(own, CASES / directory))), 400, "CHECKPOINT_NOT_LOADABLE")
    finally:
        stop.set()
        asking.join(30)
    assert not wrong and status(own)["serving"] == "serving"


def test_latest_is_the_last_saved_and_steps_grow_past_six_digits(own):
    holder, run = Trainer(own), f"order-{next(COUNTER)}"
    for step in (900, 1000, 999999, 1000000, 50):
        data = granted(holder.save(run, step), 201)
        assert data["path"] == f"{run}/step-{step:06d}" and data["name"].endswith(f":step-{step}")
        assert os.readlink(own.checkpoints / run / "latest") == f"step-{step:06d}"
    assert sorted(p.name for p in (own.checkpoints / run).iterdir()) == [
        "latest", "step-000050", "step-000900", "step-001000", "step-1000000", "step-999999"]
    for step in (1000000, 50):
        assert granted(load(own, holder.id, path=f"{run}/step-{step:06d}"))["name"].endswith(f":step-{step}")
    holder.detach()


def test_no_cache_of_old_weights_answers_for_new_ones(own, make_server):
    long_prompt = "The river ran low and the mill stood still. " * 4
    question = {"prompt": long_prompt, "max_tokens": 12}
    granted(load(own, model_id=own.row))
    holder = Trainer(own)
    ask(own, **question), ask(own, **question)  # the second may come from a cache
    holder.commit(0x0040)
    saved = granted(holder.save(f"cache-{next(COUNTER)}", 1), 201)
    changed = ask(own, **question)[0]
    holder.commit(0x0040)
    granted(load(own, holder.id, path=saved["path"]))
    assert ask(own, **question)[0] == changed
    holder.detach()
    fresh = make_server({"WEIGHTS_CHECKPOINT_READ_ROOTS": str(own.checkpoints)}, model=None)
    granted(load(fresh, name=saved["name"]))
    assert ask(fresh, **question)[0] == changed


def test_a_write_that_fails_late_leaves_nothing_and_the_next_save_works(own):
    holder, run = Trainer(own), f"full-{next(COUNTER)}"
    pid = own.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    before = ask(own)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100000, limits[1]))
    try:
        details = refused(holder.save(run, 1), 500, "CHECKPOINT_WRITE_FAILED", published=False)
        assert details["stage"] == "weights"
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    assert files_below(own.checkpoints / run) == [] and not (own.checkpoints / run).exists()
    assert ask(own) == before and status(own)["save_in_progress"] is None
    granted(holder.save(run, 1), 201)
    holder.detach()


@pytest.mark.parametrize("row", [r for r in rows("bodies.tsv") if r[1].startswith("/api/weights")],
                         ids=lambda r: r[0].split("/")[-1])
def test_request_bodies(own, row):
    holder = Trainer(own)
    try:
        raw = (CASES / row[0]).read_bytes()
        if row[1].endswith("save"):  # the case is about one field: the others are filled in
            raw = json.dumps({"manifest": {**FIELDS, **json.loads(raw)["manifest"]}}).encode()
        headers = {"Authorization": "Bearer trainer-token-for-tests", "X-miLLM-Attachment": holder.id}
        answer = own.call("POST", row[1], raw, headers)
        _, *code = row[2].split()
        error = answer.json()["error"]
        # A body that names no checkpoint, or two, has no code in the table: it is not a valid body.
        assert (answer.status, error["code"]) == ((400, code[0]) if code else (422, "VALIDATION_ERROR")), answer
    finally:
        holder.detach()
