"""Sentences of the page on checkpoints that no other test names, and the tables tests/weights_page.tsv and tests/cases.tsv,
which say for each sentence, and for each failure of other servers, which tests hold it."""
import itertools
import json
import os
import re
import shutil

import pytest
from batch_client import jsonl, line, start, wait
from conftest import MODELS, OPERATOR, ROOT, wait_until
from foreign import Foreign
from trainer import Trainer, ask, audit_lines, files_below, granted, load, refused, sha256, status

COUNTER = itertools.count(1)


# ---- the table

def table(name):
    rows = [r.split("\t") for r in (ROOT / "tests" / name).read_text().splitlines()[1:]]
    return [(ident, sentence, tests.split(" ")) for ident, sentence, tests in rows]


@pytest.mark.parametrize("which,least", [("weights_page.tsv", 100), ("weaver_page.tsv", 50), ("cases.tsv", 10)])
def test_every_sentence_names_tests_that_are_there(which, least):
    known = {}
    for ident, sentence, tests in table(which):
        assert sentence and tests
        for test in tests:
            file, name = test.split("::")
            text = known.setdefault(file, (ROOT / "tests" / file).read_text())
            pattern = rf"^def {name}\(" if file.endswith(".py") else rf"^static void {name}\(void"
            assert re.search(pattern, text, re.M), (ident, test)
    idents = [row[0] for row in table(which)]
    assert len(set(idents)) == len(idents) >= least


# Only tested as rows of a table (tests/unit/service/test_refusals.c), with the reason.
OUT_OF_REACH = {
    "ENGINE_UNSUPPORTED": "an attachment keeps its model, and only models that can be saved are attached",
    "INTERNAL_ERROR": "a fault of the server",
}


def test_every_code_of_the_management_face_is_met_by_a_test():
    codes = re.findall(r"^MANAGEMENT\((\w+),", (ROOT / "src/service/refusals.tbl").read_text(), re.M)
    text = "\n".join(f.read_text() for folder in ("api", "crash") for f in (ROOT / "tests" / folder).glob("*.py")
                     if f.name != "test_weights_page.py")
    met = {code for code in codes if re.search(rf'"{code}"', text)}
    assert len(codes) > 40 and set(codes) - met == set(OUT_OF_REACH) - met
    assert not set(OUT_OF_REACH) - set(codes)


# ---- servers

@pytest.fixture(scope="module")
def own(make_server, tmp_path_factory):
    read_root = tmp_path_factory.mktemp("read")
    server = make_server({"WEIGHTS_CHECKPOINT_READ_ROOTS": str(read_root)})
    server.read_root = read_root
    server.other = server.register(MODELS / "tiny-qwen2")["id"]
    return server


@pytest.fixture
def resident(own):
    granted(load(own, model_id=own.row))
    return own


def tree(directory):
    return {name: (directory / name).stat().st_mtime_ns for name in files_below(directory)}


def v1(server, route, name, **fields):
    bodies = {"completions": {"prompt": "x", "max_tokens": 1}, "embeddings": {"input": "x"},
              "chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}}
    return server.post(f"/v1/{route}", {"model": name, **bodies[route], **fields})


# ---- where checkpoints live

@pytest.mark.parametrize("path", ["/api/weights/instantiate", "/api/weights/create", "/api/weights/init",
                                  "/api/models/instantiate"])
def test_no_route_makes_a_model_with_random_weights(own, path):
    answer = own.post(path, {})
    assert answer.status in (404, 405) and list(answer.json()) == ["detail"]


def test_a_read_root_is_searched_and_never_written_nor_cleaned(own):
    ckpt = Foreign(own.read_root)
    left = own.read_root / ckpt.run / ".tmp-step-000009-0-0"
    left.mkdir()
    (own.read_root / "empty-run").mkdir()
    before = tree(own.read_root)
    assert granted(load(own, name=ckpt.name))["name"] == ckpt.name
    holder = Trainer(own)
    granted(holder.save(f"page-{next(COUNTER)}", 1, parent=ckpt.name), 201)
    holder.detach()
    chain = granted(own.get("/api/weights/lineage"))["chain"]
    assert [entry["root"] for entry in chain] == [str(own.checkpoints), str(own.read_root)]
    assert own.stop() == 0
    own.start()
    assert tree(own.read_root) == before
    own.load(own.row)


# ---- save

def test_the_base_of_a_save_is_that_of_the_checkpoint_it_was_loaded_from(resident):
    ckpt = Foreign(resident.checkpoints, base="org/of-the-checkpoint")
    granted(load(resident, path=ckpt.path))
    holder, run = Trainer(resident), f"page-{next(COUNTER)}"
    saved = granted(holder.save(run, 500, parent=ckpt.name), 201)
    manifest = json.loads((resident.checkpoints / saved["path"] / "manifest.json").read_text())
    assert saved["name"] == f"org/of-the-checkpoint:{run}:step-500" == manifest["name"]
    assert manifest["base_model"] == holder.info["base_model"] == "org/of-the-checkpoint"
    assert saved["path"] == f"{run}/step-000500" and manifest["step"] == 500
    holder.detach()


def test_a_parent_that_differs_is_reported_and_logged_and_never_refused(resident):
    holder, run = Trainer(resident), f"page-{next(COUNTER)}"
    answers = [holder.save(run, 1), holder.save(run, 2), holder.save(run, 3, parent=f"tiny-llama:{run}:step-2")]
    holder.detach()
    assert [granted(a, 201)["parent_check"] for a in answers] == ["match", "mismatch", "match"]
    lines = {line["request_id"]: line for line in audit_lines(resident)}
    assert [lines[a.header("X-Request-ID")]["parent_check"] for a in answers] == ["match", "mismatch", "match"]


# ---- load

MANIFESTS = [
    ("missing", lambda c: (c.dir / "manifest.json").unlink()),
    ("unreadable", lambda c: (c.dir / "manifest.json").write_bytes(b'\xef\xbb\xbf{}')),
    ("unreadable", lambda c: (c.dir / "manifest.json").write_text('{"step": 1, "step": 2}')),
    ("too_large", lambda c: (c.dir / "manifest.json").write_text(" " * (1 << 20) + "{}")),
    ("schema", lambda c: c.manifest(kind="something else")),
    ("schema", lambda c: c.manifest(domain=...)),
    ("name_mismatch", lambda c: c.manifest(name="other:run:step-1")),
    ("directory_mismatch", lambda c: c.manifest(step=2, name=f"tiny-llama:{c.run}:step-2")),
    ("directory_mismatch", lambda c: c.manifest(run_id="elsewhere", name="tiny-llama:elsewhere:step-1")),
]


@pytest.mark.parametrize("reason,spoil", MANIFESTS, ids=[f"{i}-{reason}" for i, (reason, _) in enumerate(MANIFESTS)])
def test_a_manifest_must_be_valid_and_of_its_place(resident, reason, spoil):
    ckpt = Foreign(resident.checkpoints)
    spoil(ckpt)
    before = status(resident)
    details = refused(load(resident, path=ckpt.path), 400, "INVALID_MANIFEST", reason=reason)
    assert (reason == "schema") == bool(details.get("errors"))
    assert status(resident) == before


def test_kind_and_version_may_be_absent_or_there(resident):
    ckpt = Foreign(resident.checkpoints)
    assert "kind" not in json.loads((ckpt.dir / "manifest.json").read_text())
    granted(load(resident, path=ckpt.path))
    ckpt.manifest(kind="miforge.checkpoint-manifest", schema_version="1")
    granted(load(resident, path=ckpt.path))


@pytest.mark.parametrize("run", ["-begins-with-a-dash", "_x", ".hidden", "with a space", "r\u00fcn\u2603"])
def test_a_loaded_run_id_need_only_be_a_segment(resident, run):
    ckpt = Foreign(resident.checkpoints, run=run, base="b")
    assert granted(load(resident, path=ckpt.path))["name"] == f"b:{run}:step-1"
    shutil.rmtree(ckpt.dir.parent)


@pytest.mark.parametrize("run", ["a:b", "..", ".", ""])
def test_a_run_id_that_is_no_segment_is_refused(resident, run):
    ckpt = Foreign(resident.checkpoints)
    ckpt.manifest(run_id=run, name=f"tiny-llama:{run}:step-1")
    refused(load(resident, path=ckpt.path), 400, "INVALID_RUN_ID", reason="unsafe_segment")


def test_a_hash_mismatch_tells_both_values(resident):
    ckpt = Foreign(resident.checkpoints)
    told = json.loads((ckpt.dir / "manifest.json").read_text())["weights_sha256"]
    with open(ckpt.dir / "model.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    refused(load(resident, path=ckpt.path), 422, "CHECKPOINT_HASH_MISMATCH", expected=told,
            actual=sha256(ckpt.dir / "model.safetensors"))


def test_a_path_longer_than_a_row_holds_is_refused_for_a_full_reload_only(make_server, tmp_path):
    deep = tmp_path / ("d" * 200) / ("e" * 200)
    deep.mkdir(parents=True)
    server = make_server({"WEIGHTS_CHECKPOINT_READ_ROOTS": str(deep)})
    same = Foreign(deep, run="r" * 100)
    assert granted(load(server, path=same.path))["mode"] == "in_place"
    same.base = "org/other"
    same.manifest()
    details = refused(load(server, path=same.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="path_length", max_length=500)
    assert details["length"] == len(str(same.dir.resolve())) > 500


def test_a_config_that_would_cast_tells_both_dtypes(resident):
    ckpt = Foreign(resident.checkpoints, base="org/other")
    ckpt.config(dtype="float16", torch_dtype="float16")
    refused(load(resident, path=ckpt.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="dtype", load_dtype="float16",
            weights_dtype="bfloat16")
    ckpt.config(dtype="bfloat16", torch_dtype="float16")  # loaders of either key must agree
    refused(load(resident, path=ckpt.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="dtype", load_dtype="float16",
            weights_dtype="bfloat16")
    half = Foreign(resident.checkpoints, base="org/half", model=MODELS / "tiny-llama-f16")
    half.config(dtype=..., torch_dtype=...)
    refused(load(resident, path=half.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="dtype", load_dtype="bfloat16",
            weights_dtype="float16")


def test_what_is_missing_is_named(resident):
    ckpt = Foreign(resident.checkpoints, base="org/other")
    ckpt.config(model_type=...)
    details = refused(load(resident, path=ckpt.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="incomplete")
    assert any("model_type" in m for m in details["missing"]), details
    (ckpt.dir / "config.json").unlink()
    details = refused(load(resident, path=ckpt.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="incomplete")
    assert "config.json" in details["missing"]
    other = Foreign(resident.checkpoints, base="org/other")
    os.mkfifo(other.dir / "pipe")
    (other.dir / "out").symlink_to("/etc/hostname")
    details = refused(load(resident, path=other.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="unsafe_file")
    assert sorted(details["files"]) == ["out", "pipe"]


def test_a_file_that_cannot_be_used_is_named_as_missing(resident):
    for file, text in (("tokenizer.json", "{"), ("generation_config.json", "["), ("config.json", None)):
        ckpt = Foreign(resident.checkpoints, base="org/other")
        if text:
            (ckpt.dir / file).write_text(text)
        else:
            ckpt.config(num_attention_heads=5)
        details = refused(load(resident, path=ckpt.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="incomplete",
                          missing=[file])
        assert details["problem"]
    ckpt = Foreign(resident.checkpoints, base="org/other")
    ckpt.config(num_hidden_layers=7)
    refused(load(resident, path=ckpt.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="incomplete", missing=["model.safetensors"])
    assert status(resident)["weights_state"] == "clean"


def test_an_operator_may_load_in_place_when_the_holder_is_stale(make_server):
    server = make_server({"WEIGHTS_HEARTBEAT_TIMEOUT_S": "2"})
    ckpt, holder = Foreign(server.checkpoints), Trainer(server)
    refused(load(server, None, OPERATOR, path=ckpt.path), 409, "ALREADY_ATTACHED", stale=False)
    wait_until(lambda: status(server)["attachment"]["state"] == "stale")
    refused(load(server, path=ckpt.path), 409, "ALREADY_ATTACHED", stale=True)
    assert granted(load(server, None, OPERATOR, path=ckpt.path))["mode"] == "in_place"
    assert ask(server)[1].startswith(f'"{ckpt.name}"')
    holder.detach()


def test_a_load_hands_the_hold_back_with_its_timer_anew(resident):
    ckpt, holder = Foreign(resident.checkpoints), Trainer(resident)
    first = holder.do("quiesce")["hold_expires_at"]
    granted(load(resident, holder.id, path=ckpt.path))
    after = status(resident)
    assert after["serving"] == "quiesced" and after["hold"]["expires_at"] > first
    holder.do("resume")
    holder.detach()


def test_a_load_leaves_the_state_clean_and_the_count_of_steps_at_0(resident):
    ckpt, holder = Foreign(resident.checkpoints), Trainer(resident)
    holder.commit(0x0004)
    assert status(resident)["steps_since_load"] == 1
    data = granted(load(resident, holder.id, path=ckpt.path))
    assert (data["weights_state"], data["steps_since_load"]) == ("clean", 0)
    assert (status(resident)["weights_state"], status(resident)["steps_since_load"]) == ("clean", 0)
    holder.detach()


def test_each_load_leaves_one_audit_line_token_refusals_too_and_lineage_none(resident):
    ckpt = Foreign(resident.checkpoints)
    answers = [load(resident, path=ckpt.path), load(resident, path="none/step-000001"),
               load(resident, token="z" * 20, path="x"), load(resident, None, OPERATOR, model_id=resident.row), resident.get("/api/weights/lineage")]
    lines = {}
    for entry in audit_lines(resident):
        lines.setdefault(entry["request_id"], []).append(entry)
    told = [lines.get(a.header("X-Request-ID"), []) for a in answers]
    assert [len(t) for t in told] == [1, 1, 1, 1, 0]
    assert [(t[0]["operation"], t[0]["outcome"], t[0]["http_status"], t[0]["code"], t[0]["identity"]) for t in told[:4]] == [
        ("weights_load", "accepted", 200, None, "forge"), ("weights_load", "refused", 404, "CHECKPOINT_NOT_FOUND", "forge"),
        ("weights_load", "refused", 401, "UNAUTHORIZED", None), ("weights_load", "accepted", 200, None, "ops")]
    assert told[0][0]["checkpoint"] == ckpt.name and told[0][0]["mode"] == "in_place"


# ---- the served name

@pytest.mark.parametrize("attached", [True, False])
def test_the_original_row_is_refused_everywhere_and_the_weights_stay(resident, attached):
    holder = Trainer(resident)
    holder.commit(0x0040)
    saved = granted(holder.save(f"page-{next(COUNTER)}", 1), 201)
    trained = ask(resident)
    if not attached:
        holder.detach()
    unknown = v1(resident, "completions", "nobody").json()["error"]
    for route in ("completions", "chat/completions", "embeddings"):
        answer = v1(resident, route, "tiny-llama")
        error = answer.json()["error"]
        assert answer.status == 404 and {k: error[k] for k in ("type", "param", "code")} == {
            k: unknown[k] for k in ("type", "param", "code")}
        assert saved["name"] in error["message"]
        assert f'POST /api/weights/load {{"model_id": {resident.row}}}' in error["message"]
    batch = wait(resident, start(resident, jsonl([line(resident, "a"), line(resident, "b")])))
    assert batch["status"] == "failed" and {e["code"] for e in batch["errors"]["data"]} == {"model_not_found"}
    assert ask(resident) == trained
    if attached:
        holder.detach()


def test_every_answer_and_a_stream_s_last_chunk_say_the_same_name(resident):
    holder = Trainer(resident)
    saved = granted(holder.save(f"page-{next(COUNTER)}", 7), 201)
    header = f'"{saved["name"]}";origin=checkpoint;commits='
    for commits in (0, 1):
        for route in ("completions", "chat/completions", "embeddings"):
            answer = v1(resident, route, saved["name"])
            assert answer.json()["model"] == saved["name"] and answer.header("X-miLLM-Model") == f"{header}{commits}"
        answer, chunks = resident.stream("/v1/chat/completions", {
            "model": saved["name"], "messages": [{"role": "user", "content": "x"}], "max_tokens": 2})
        assert answer.header("X-miLLM-Model") == chunks[-1]["millm_model"] == f"{header}{commits}"
        listed = [m["id"] for m in resident.get("/v1/models").json()["data"]]
        assert saved["name"] in listed and "tiny-llama" not in listed
        holder.commit(0x0001)
    holder.detach()


def test_once_commits_are_saved_another_model_is_loaded_on_demand(resident):
    holder = Trainer(resident)
    saved = granted(holder.save(f"page-{next(COUNTER)}", 1), 201)
    holder.commit(0x0040)
    answer = v1(resident, "completions", "tiny-qwen2")
    assert (answer.status, answer.json()["error"]["code"]) == (409, "weights_unsaved")
    assert saved["name"] in answer.json()["error"]["message"] and "1 commit" in answer.json()["error"]["message"]
    granted(holder.save(f"page-{next(COUNTER)}", 2, parent=saved["name"]), 201)
    holder.detach()
    assert v1(resident, "completions", "tiny-qwen2").status == 200
    answer = v1(resident, "completions", saved["name"])  # its row is not there: nobody loaded it
    assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")


# ---- lineage

def test_a_chain_runs_from_the_resident_to_its_root_and_counts_unsaved_commits(resident):
    plain = granted(resident.get("/api/weights/lineage"))
    assert (plain["chain"], plain["complete"], plain["break"]) == ([], True, None)
    assert plain["resident"] == {"name": "tiny-llama", "origin": "model", "manifest_sha256": None,
                                 "commits_since_identity": 0}
    holder, run = Trainer(resident), f"page-{next(COUNTER)}"
    first = granted(holder.save(run, 1), 201)
    second = granted(holder.save(run, 2, parent=first["name"]), 201)
    holder.commit(0x0002)
    found = granted(resident.get("/api/weights/lineage"))
    assert found["resident"] == {"name": second["name"], "origin": "checkpoint",
                                 "manifest_sha256": second["manifest_sha256"], "commits_since_identity": 1}
    assert found["chain"] == [
        {"name": s["name"], "run_id": run, "step": n, "path": s["path"], "root": str(resident.checkpoints),
         "manifest_sha256": s["manifest_sha256"], "weights_sha256": s["weights_sha256"], "parent": parent,
         "merged_adapter": None} for n, s, parent in ((2, second, first["name"]), (1, first, None))]
    assert [found[k] for k in ("base_model", "complete", "break", "weights_verified")] == ["tiny-llama", True, None, False]
    holder.detach()


def break_of(server, parent):
    holder = Trainer(server)
    granted(holder.save(f"page-{next(COUNTER)}", 1, parent=parent), 201)
    holder.detach()
    found = granted(server.get("/api/weights/lineage"))
    assert found["complete"] is False and len(found["chain"]) >= 1
    return found["break"]


def test_each_break_of_a_chain_has_its_reason(resident):
    ckpt = Foreign(resident.checkpoints)
    (ckpt.dir / "model.safetensors").write_bytes(b"")  # lineage never looks at it
    assert break_of(resident, "b:none:step-1") == {"at": "b:none:step-1", "reason": "manifest_missing"}
    assert break_of(resident, f"other:{ckpt.run}:step-1")["reason"] == "name_mismatch"
    ckpt.manifest(parent=ckpt.name)
    assert break_of(resident, ckpt.name) == {"at": ckpt.name, "reason": "cycle"}
    ckpt.manifest(extra=1)
    assert break_of(resident, ckpt.name)["reason"] == "manifest_invalid"
    ckpt.manifest()
    (resident.read_root / ckpt.run / "step-000005").mkdir(parents=True)
    assert break_of(resident, ckpt.name) == {"at": ckpt.name, "reason": "ambiguous"}
    leads_out = resident.checkpoints / f"out-{next(COUNTER)}"
    leads_out.symlink_to("/tmp")
    assert break_of(resident, f"b:{leads_out.name}:step-1")["reason"] == "manifest_invalid"


def test_the_depth_is_bounded(make_server):
    server = make_server({"WEIGHTS_LINEAGE_MAX_DEPTH": "2"})
    holder, parent = Trainer(server), None
    names = []
    for step in (1, 2, 3):
        parent = granted(holder.save("deep", step, parent=parent), 201)["name"]
        names.append(parent)
        found = granted(server.get("/api/weights/lineage"))
        assert found["complete"] is (step < 3)
    assert found["break"] == {"at": names[0], "reason": "depth_limit"} and len(found["chain"]) == 2
