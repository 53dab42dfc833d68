"""Loading: in place, by swap, as a full reload; refusals in their order (spec 5.5 to 5.7)."""
import itertools
import re
import shutil

import pytest
from conftest import MODELS, OPERATOR, TRAINER, refusing_writes
import foreign
from foreign import Foreign
from trainer import Trainer, ask, audit_lines, granted, load, read_safetensors, refused, status, sha256

COUNTER = itertools.count(1)


@pytest.fixture(scope="module")
def own(make_server, tmp_path_factory):
    read_root = tmp_path_factory.mktemp("read")
    server = make_server({"WEIGHTS_CHECKPOINT_READ_ROOTS": str(read_root)})
    server.read_root = read_root
    return server


@pytest.fixture
def resident(own):
    """tiny-llama from its own files, nothing attached."""
    granted(load(own, model_id=own.row))
    return own


def test_three_ways_in(resident):
    plain, _ = ask(resident)
    other = Foreign(resident.checkpoints, mask=0x20)
    data = granted(load(resident, path=other.path))
    assert (data["mode"], data["name"], data["weights_sha256"]) == ("in_place", other.name, sha256(
        other.dir / "model.safetensors"))
    swapped, header = ask(resident, other.name)
    assert swapped != plain and header == f'"{other.name}";origin=checkpoint;commits=0'
    holder = Trainer(resident)
    first = granted(holder.save(f"own-{next(COUNTER)}", 1, parent=other.name), 201)
    holder.commit(0x0100)
    assert ask(resident)[0] != swapped
    granted(load(resident, holder.id, path=first["path"]))
    assert ask(resident)[0] == swapped
    assert holder.digest() == first["weights_sha256"]  # through the mapping made before the load
    holder.detach()
    qwen = Foreign(resident.checkpoints, base="org/other", model=MODELS / "tiny-qwen2")
    assert granted(load(resident, name=qwen.name))["mode"] == "full_reload"
    assert status(resident)["model"]["base_model"] == "org/other"
    back = granted(load(resident, model_id=resident.row))
    assert (back["name"], back["mode"], back["weights_sha256"], back["verify_ms"]) == (
        "tiny-llama", "full_reload", None, 0)
    assert ask(resident, "tiny-llama")[0] == plain


def test_a_row_that_cannot_be_held_for_a_load_is_not_loaded(resident):
    before, row = status(resident), resident.register(MODELS / "tiny-qwen3")["id"]
    with refusing_writes(resident, "UPDATE ON models WHEN NEW.status = 'loading'"):
        refused(load(resident, model_id=row), 500, "INTERNAL_ERROR")
    after = status(resident)
    assert (after["weights_state"], after["model"]) == (before["weights_state"], before["model"])
    assert granted(resident.get(f"/api/models/{row}"))["status"] == "ready"
    assert granted(load(resident, model_id=row))["mode"] == "full_reload"
    granted(load(resident, model_id=resident.row))
    granted(resident.call("DELETE", f"/api/models/{row}"))


@pytest.mark.parametrize("how", ["name", "relative", "absolute", "latest", "absolute latest"])
def test_a_checkpoint_is_named_in_many_ways(resident, how):
    ckpt = Foreign(resident.read_root)
    (ckpt.dir.parent / "latest").symlink_to(ckpt.dir.name)
    body = {"name": {"name": ckpt.name}, "relative": {"path": ckpt.path}, "absolute": {"path": str(ckpt.dir)},
            "latest": {"path": f"{ckpt.run}/latest"}, "absolute latest": {"path": str(ckpt.dir.parent / "latest")}}[how]
    assert granted(load(resident, **body))["name"] == ckpt.name


@pytest.mark.parametrize("body", [{}, {"name": "a:b:step-1", "path": "b/step-000001"}, {"path": 5}, {"model_id": "1"},
                                  {"model_id": 1.5}, {"model_id": True}, {"path": "a/b", "x": 1}, {"name": None},
                                  {"path": "a/step-000001", "trust_remote_code": "yes"}])
def test_a_body_names_exactly_one_thing(own, body):
    answer = load(own, **body)
    assert refused(answer, 422, "VALIDATION_ERROR")["errors"]
    said = answer.json()["error"]["message"]  # a sentence, whichever field is wrong
    assert re.fullmatch(r"The request body is not valid: \w+ (must|is) .+\.", said), said


@pytest.mark.parametrize("path,reason", [("../x/step-000001", None), ("/etc/passwd", "outside_roots"), ("a", "shape"),
                                         ("", None), ("a/step-1", None), ("a/b/c", "shape"), ("a/step-000001\0", None),
                                         ("./a/step-000001", None)])
def test_paths_that_lead_elsewhere(own, path, reason):
    details = refused(load(own, path=path), 400, "INVALID_CHECKPOINT_PATH")
    assert reason in (None, details["reason"])


@pytest.mark.parametrize("name", ["x", "a:b", "a:b:step-01", "a::step-1", ":b:step-1", "a:b:step-"])
def test_names_of_another_form(own, name):
    refused(load(own, name=name), 400, "INVALID_RUN_ID", reason="name_format")


def test_requests_are_judged_before_files(resident):
    ckpt = Foreign(resident.checkpoints, base="org/reload")
    foreign.flip(ckpt)
    refused(load(resident, token="w" * 20, path=ckpt.path), 401, "UNAUTHORIZED")
    refused(load(resident, path=ckpt.path, extra=1), 422, "VALIDATION_ERROR")
    Foreign(resident.read_root, run=ckpt.run)
    details = refused(load(resident, path=ckpt.path), 409, "CHECKPOINT_AMBIGUOUS", run_id=ckpt.run)
    assert len(details["roots"]) == 2
    refused(load(resident, path="nobody/step-000001"), 404, "CHECKPOINT_NOT_FOUND", searched=["nobody/step-000001"])
    refused(load(resident, model_id=10 ** 9), 404, "MODEL_NOT_FOUND")


def test_while_attached_only_the_holder_loads_and_only_in_place(resident):
    inside, outside = Foreign(resident.checkpoints), Foreign(resident.checkpoints, base="org/reload")
    holder = Trainer(resident)
    before = holder.digest()
    for token in (TRAINER, OPERATOR):
        refused(load(resident, None, token, path=inside.path), 409, "ALREADY_ATTACHED", stale=False)
        refused(load(resident, "att_" + "D" * 43, token, path=inside.path), 409, "ALREADY_ATTACHED")
    refused(load(resident, holder.id, path=outside.path), 409, "ALREADY_ATTACHED", mode="full_reload")
    refused(load(resident, holder.id, model_id=resident.row), 409, "ALREADY_ATTACHED")
    assert holder.digest() == before
    holder.do("quiesce")
    assert granted(load(resident, holder.id, path=inside.path))["mode"] == "in_place"
    assert status(resident)["serving"] == "quiesced"  # the hold is handed back
    holder.do("commit-begin")
    for token, attachment in ((TRAINER, holder.id), (OPERATOR, None)):
        refused(load(resident, attachment, token, path=inside.path), 409, "WEIGHTS_NOT_CLEAN", weights_state="writing")
    holder.do("commit-end")
    holder.do("resume")
    holder.detach()


def test_a_registered_directory_and_an_unknown_device_are_refused_for_full_reloads_only(resident):
    ckpt = Foreign(resident.checkpoints, base="org/reload")
    for gpu in ("cuda:0", 0, "x" * 100, ["cuda:0"]):
        refused(load(resident, path=ckpt.path, gpu=gpu), 404, "GPU_NOT_FOUND", requested=gpu)
        refused(load(resident, model_id=resident.row, gpu=gpu), 404, "GPU_NOT_FOUND", requested=gpu)
    row = resident.register(ckpt.dir, custom_name=f"taken-{next(COUNTER)}")
    refused(load(resident, path=ckpt.path), 409, "LOCAL_PATH_REGISTERED", model_id=row["id"])
    assert resident.call("DELETE", f"/api/models/{row['id']}").status == 200
    assert granted(load(resident, path=ckpt.path, gpu="cpu"))["mode"] == "full_reload"
    carrier = status(resident)["model"]["row_id"]
    granted(load(resident, model_id=resident.row))
    refused(load(resident, model_id=carrier), 400, "CHECKPOINT_NOT_LOADABLE", reason="carrier_row")
    refused(resident.post(f"/api/models/{carrier}/load"), 400, "CHECKPOINT_NOT_LOADABLE", reason="carrier_row")
    answer = resident.post("/v1/completions", {"model": ckpt.name, "prompt": "x"})
    assert answer.status == 404 and "/api/weights/load" in answer.json()["error"]["message"]
    assert resident.call("DELETE", f"/api/models/{carrier}").status == 200
    assert (ckpt.dir / "model.safetensors").exists()


def test_a_number_of_a_device_is_ignored_in_place(resident):
    ckpt = Foreign(resident.checkpoints, base="tiny-llama")
    assert granted(load(resident, path=ckpt.path, gpu=0))["mode"] == "in_place"


def test_the_longest_name_that_can_be_loaded_is_served_whole(resident):
    """A base of many bytes may come from elsewhere; in place its names may be longer than a row holds."""
    base = "\U0001f999" * 240
    first = Foreign(resident.checkpoints, base=base, run="r", model=MODELS / "tiny-qwen2")
    assert granted(load(resident, path=first.path))["mode"] == "full_reload"
    long = Foreign(resident.checkpoints, base=base, run="x" * 255, step=2**53 - 1, model=MODELS / "tiny-qwen2")
    data = granted(load(resident, name=long.name))
    assert (data["mode"], data["name"]) == ("in_place", long.name)
    assert status(resident)["model"]["name"] == long.name and ask(resident, long.name)
    lineage = granted(resident.get("/api/weights/lineage"))
    assert [e["name"] for e in lineage["chain"]] == [long.name] and lineage["complete"]
    assert audit_lines(resident)[-1]["checkpoint"] == long.name


def test_a_row_that_has_the_checkpoint_s_name_is_named_and_kept(resident):
    ckpt = Foreign(resident.checkpoints, base="org/reload")
    row = resident.register(MODELS / "tiny-qwen3", custom_name=ckpt.name)
    for way in ("plan/load", "load"):
        refused(resident.weights(way, {"path": ckpt.path}), 409, "LOCAL_PATH_REGISTERED", model_id=row["id"],
                model_name=ckpt.name)
    assert granted(resident.get(f"/api/models/{row['id']}"))["name"] == ckpt.name
    assert status(resident)["model"]["row_id"] == resident.row
    assert resident.call("DELETE", f"/api/models/{row['id']}").status == 200
    assert granted(load(resident, path=ckpt.path))["mode"] == "full_reload"


def test_a_copy_of_a_loaded_checkpoint_under_another_root_leaves_its_row(resident):
    ckpt = Foreign(resident.checkpoints, base="org/reload")
    copy = resident.read_root / ckpt.run
    shutil.copytree(ckpt.dir.parent, copy)
    refused(load(resident, path=ckpt.path), 409, "CHECKPOINT_AMBIGUOUS")
    granted(load(resident, path=str(ckpt.dir)))
    carrier = status(resident)["model"]["row_id"]
    granted(load(resident, model_id=resident.row))
    refused(load(resident, path=str(copy / ckpt.dir.name)), 409, "LOCAL_PATH_REGISTERED", model_id=carrier)
    assert granted(resident.get(f"/api/models/{carrier}"))["local_path"] == str(ckpt.dir)
    shutil.rmtree(ckpt.dir.parent)
    granted(load(resident, path=str(copy / ckpt.dir.name)))
    assert status(resident)["model"]["row_id"] == carrier
    assert granted(resident.get(f"/api/models/{carrier}"))["local_path"] == str(copy / ckpt.dir.name)


def test_a_checkpoint_s_row_tells_of_its_model(resident):
    ckpt = Foreign(resident.checkpoints, base="org/reload")
    granted(load(resident, path=ckpt.path))
    row, own = (granted(resident.get(f"/api/models/{i}")) for i in (status(resident)["model"]["row_id"], resident.row))
    facts = ("params", "architecture", "disk_size_mb", "estimated_memory_mb", "supports_embeddings")
    assert [row[f] for f in facts] == [own[f] for f in facts] and row["supports_embeddings"] is True


def test_remote_code_needs_an_operator_and_runs_nothing(resident):
    ckpt = Foreign(resident.checkpoints, base="org/reload")
    ckpt.config(auto_map={"AutoModelForCausalLM": "modeling.Net"})
    (ckpt.dir / "modeling.py").write_text("raise SystemExit('ran')")
    refused(load(resident, path=ckpt.path, trust_remote_code=True), 400, "CHECKPOINT_NOT_LOADABLE",
            reason="remote_code")
    refused(load(resident, None, OPERATOR, path=ckpt.path), 400, "CHECKPOINT_NOT_LOADABLE", reason="remote_code")
    granted(load(resident, None, OPERATOR, path=ckpt.path, trust_remote_code=True))
    granted(load(resident, model_id=resident.row))
    ckpt.config(model_type="nobody-knows-it")
    refused(load(resident, None, OPERATOR, path=ckpt.path, trust_remote_code=True), 400, "CHECKPOINT_NOT_LOADABLE",
            reason="remote_code", native=False)


def test_in_place_opens_no_file_but_manifest_and_weights(resident):
    ckpt = Foreign(resident.checkpoints)
    (ckpt.dir / "config.json").unlink()
    (ckpt.dir / "tokenizer.json").write_text("{}")
    assert granted(load(resident, path=ckpt.path))["mode"] == "in_place"


def test_saved_files_open_with_nothing_of_ours(resident):
    holder = Trainer(resident)
    data = granted(holder.save(f"plain-{next(COUNTER)}", 1), 201)
    tensors = read_safetensors(resident.checkpoints / data["path"] / "model.safetensors")
    for entry in holder.info["tensors"]:
        if entry["shared_with"] is None:
            dtype, shape, raw = tensors[entry["name"]]
            assert (dtype, shape) == (entry["dtype"], entry["shape"])
            assert raw == bytes(holder.arena[entry["offset"]:entry["offset"] + entry["nbytes"]])
    holder.detach()


def test_after_kill_9_the_checkpoint_loads_and_answers_the_same(make_server, tmp_path):
    import signal
    server = make_server(state=tmp_path / "state")
    holder = Trainer(server)
    holder.commit(0x0200)
    saved = granted(holder.save("run", 1), 201)
    answer = ask(server)
    server.stop(signal.SIGKILL)
    server.start()
    assert status(server)["model"] is None
    granted(load(server, name=saved["name"]))
    assert ask(server)[0] == answer[0]
    lineage = granted(server.get("/api/weights/lineage"))
    assert [e["name"] for e in lineage["chain"]] == [saved["name"]] and lineage["complete"] is True
    assert lineage["weights_verified"] is False
