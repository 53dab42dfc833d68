"""POST /api/weights/promote: a training checkpoint becomes an ordinary one, and lineage runs across both faces."""
import hashlib
import uuid

import pytest
from foreign import Foreign
from weaver_http import ENV, Run


@pytest.fixture(scope="module")
def own(make_server):
    return make_server(ENV)


def manifest(run_id="promoted", step=1, **fields):
    return {"run_id": run_id, "step": step, "domain": "tests", "signal_source": "corpus", "parent": None,
            "optimizer": {"name": "adamw", "state": "fresh"}, **fields}


def promote(own, checkpoint, **kw):
    return own.weights("promote", {"checkpoint": checkpoint, "manifest": manifest(**kw)})


@pytest.mark.parametrize("mode", ["full_ft", "lora"])
def test_a_promoted_checkpoint_loads_by_name_and_has_a_lineage(own, w, mode):
    run = Run(w, training_mode=mode, lora_config={"rank": 8, "seed": 1})
    run.train(3, 1e-3)
    c = run.save(name="best")
    answer = promote(own, c["path"], run_id=f"run-{mode}")
    assert answer.status == 201, answer
    data = answer.json()["data"]
    assert data["name"] == f"tiny-llama:run-{mode}:step-1" and data["checkpoint"] == c["path"] and data["identity_set"] is False
    directory = own.checkpoints / data["path"]
    assert hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest() == data["weights_sha256"]
    if mode == "full_ft":
        source = own.state / "weaver" / run.id / c["id"] / "model.safetensors"
        assert (directory / "model.safetensors").read_bytes() == source.read_bytes()
    assert own.get("/api/weights/status").json()["data"]["model"]["name"] == own.model, "the resident is what it was"
    loaded = own.weights("load", {"name": data["name"]})
    assert loaded.status == 200, loaded
    chain = own.get("/api/weights/lineage").json()["data"]
    assert chain["resident"]["name"] == data["name"] and chain["base_model"] == "tiny-llama"
    if mode == "full_ft":
        got = own.post("/v1/completions", {"model": data["name"], "prompt": [5, 6, 7, 8], "max_tokens": 1, "echo": True, "logprobs": 0})
        scores = got.json()["choices"][0]["logprobs"]["token_logprobs"][-4:-1]
        data_ = [{"model_input": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}, "loss_fn_inputs": {"target_tokens": [6, 7, 8]}}]
        assert scores == pytest.approx(run.forward(data_)["result"]["loss_fn_outputs"][0]["logprobs"]["data"], abs=1e-6)
    assert own.weights("load", {"model_id": own.row}).status == 200


def test_what_a_checkpoint_s_run_promotes_has_the_root_of_that_checkpoint(own, w):
    ckpt = Foreign(own.checkpoints, base="org/root")
    assert own.weights("load", {"path": ckpt.path}).json()["data"]["mode"] == "full_reload"
    assert own.weights("load", {"model_id": own.row}).status == 200
    run = Run(w, base=ckpt.name, training_mode="full_ft")
    run.train(1, 1e-3)
    c = run.save(name="on-top")["path"]
    assert promote(own, c, run_id="above", step=1).json()["data"]["parent_check"] == "mismatch"
    data = promote(own, c, run_id="above", step=2, parent=ckpt.name).json()["data"]
    assert (data["name"], data["parent_check"]) == ("org/root:above:step-2", "match")
    assert own.weights("load", {"name": data["name"]}).status == 200
    lineage = own.get("/api/weights/lineage").json()["data"]
    assert [e["name"] for e in lineage["chain"]] == [data["name"], ckpt.name] and lineage["complete"] is True
    assert lineage["base_model"] == "org/root"
    assert own.weights("load", {"model_id": own.row}).status == 200


def test_refusals_of_a_save_apply(own, w):
    run = Run(w, lora_config={"rank": 2})
    c = run.save(name="x")["path"]
    assert promote(own, c, run_id="twice").status == 201
    for answer, status, code in (
            (promote(own, c, run_id="twice"), 409, "CHECKPOINT_EXISTS"), (promote(own, c, run_id=".bad"), 400, "INVALID_RUN_ID"),
            (promote(own, f"weaver://{uuid.uuid4()}/checkpoints/x"), 404, "CHECKPOINT_NOT_FOUND"),
            (promote(own, c, run_id="own", base_model="mine"), 400, "MANIFEST_FIELD_NOT_CALLERS"),
            (own.weights("promote", {"manifest": manifest()}), 422, "VALIDATION_ERROR"),
            (own.weights("promote", {"checkpoint": c, "manifest": {"run_id": "r"}}), 400, "INVALID_MANIFEST"),
            (own.weights("promote", {"checkpoint": c, "manifest": manifest()}, token="wrong-token-of-nobody"), 401, "UNAUTHORIZED")):
        assert answer.status == status and answer.json()["error"]["code"] == code, answer
