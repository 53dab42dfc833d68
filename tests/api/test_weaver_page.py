"""Sentences of the page on saving and loading, and of the contract of the training API, that no other test names; every code of
this face is met by a test. The table: tests/weaver_page.tsv."""
import datetime
import re
import time
import uuid

import pytest
from conftest import FAULTS, MODELS, ROOT, needs_faults, wait_until
from weaver_http import ENV, Run, Weaver, datum, error

# Only met where the machine fails, with the reason.
OUT_OF_REACH = {
    "busy": "a repeated request whose first is still worked on after half a minute",
    "insufficient_storage": "a full disk: a save that cannot write is test_a_full_disk_fails_the_save_and_leaves_no_row",
}


def test_every_code_of_the_training_face_is_met_by_a_test():
    codes = re.findall(r'^WEAVER\(\w+, "(\w+)"', (ROOT / "src/service/refusals.tbl").read_text(), re.M)
    text = "\n".join(f.read_text() for f in (ROOT / "tests/api").glob("test_weaver_*.py"))
    text = text.replace(text[text.index("OUT_OF_REACH = {"):text.index("}", text.index("OUT_OF_REACH = {"))], "")
    met = {code for code in codes if f'"{code}"' in text}
    assert len(codes) > 40 and set(codes) - met == set(OUT_OF_REACH)


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server(ENV, model=None)
    for name in ("tiny-llama", "tiny-qwen2"):
        server.register(MODELS / name)
    return server


def run_of(w):
    run = Run(w, lora_config={"rank": 4, "seed": 3})
    yield run
    w.post(run.path + "/terminate")


@pytest.fixture
def run(w):
    yield from run_of(w)


@pytest.fixture(scope="module")
def patient(make_server):
    """A client of a server whose calls wait ten minutes for the one before them."""
    server = make_server({**ENV, "CAIRN": str(FAULTS), "WEIGHTS_TEST_PREDECESSOR_MS": "600000"}, model=None)
    server.register(MODELS / "tiny-llama")
    return Weaver(server).connect()


@pytest.fixture
def late(patient):
    """A run of it."""
    yield from run_of(patient)


def blocked(run):
    """A pass that comes before its predecessor: what is sent now waits behind it, until the predecessor is sent by the function
    that is returned."""
    first, second = run.forward_body(), run.forward_body()
    waits = run.w.post(run.path + "/forward-passes", second, 202)

    def release():
        run.w.run(run.path + "/forward-passes", first)
        run.w.wait(waits)

    return release


# ---- the page ----

@needs_faults
def test_a_save_that_does_not_wait_is_listed_as_pending_and_cannot_be_loaded_yet(patient, late):
    w, run, other = patient, late, Run(patient, lora_config={"rank": 4, "seed": 3})
    release = blocked(run)
    handle = w.post(run.path + "/checkpoints", {"type": "weight", "name": "step-100"}, 202)
    assert handle["status"] == "pending" and handle["type"] == "save_checkpoint"
    c = run.checkpoints()[0]
    assert (c["status"], c["name"], c["path"]) == ("pending", "step-100", f"weaver://{run.id}/checkpoints/step-100")
    for route, body in ((other.path + "/load", {"path": c["path"]}), (f"/sessions/{w.session}/sampling-sessions", {"model_path": c["path"]}),
                        (f"/checkpoints/{c['id']}/export", {})):
        assert error(w.call("POST", route, body), 409, "checkpoint_not_ready")["retryable"] is True
    release()
    assert w.wait(handle)["status"] == "completed" and run.checkpoints()[0]["status"] == "completed"
    assert other.load(c["path"])["checkpoint_id"] == c["id"]


@needs_faults
def test_a_checkpoint_that_a_load_waits_for_is_not_removed(patient, late):
    w, run, c = patient, late, late.save(name="used")
    release = blocked(run)
    load = w.post(run.path + "/load", {"path": c["path"]}, 202)
    assert error(w.call("DELETE", f"/checkpoints/{c['id']}"), 409, "checkpoint_in_use")["retryable"] is True
    release()
    assert w.wait(load)["checkpoint_id"] == c["id"]
    assert w.call("DELETE", f"/checkpoints/{c['id']}").status == 204


@needs_faults
def test_a_load_whose_turn_comes_after_the_lifetime_fails(patient, late):
    w, run, c = patient, late, late.save(name="short", ttl_seconds=600)
    release = blocked(run)
    load = w.post(run.path + "/load", {"path": c["path"]}, 202)
    assert w.call("PATCH", run.path + "/checkpoints/ttl", {"path": c["path"], "ttl_seconds": 1}).status == 200
    wait_until(lambda: run.checkpoints() == [])
    error(w.call("POST", run.path + "/load", {"path": c["path"]}), 410, "checkpoint_expired")
    release()
    assert w.wait(load, "error")["error"] == "checkpoint_expired"


def test_fields_of_a_checkpoint(w, run):
    before = int(time.time())  # the times have whole seconds, or more
    c = run.save(name="Final model (best)", ttl_seconds=7200)
    assert str(uuid.UUID(c["id"])) == c["id"] and c["path"] == f"weaver://{run.id}/checkpoints/Final-model-best"
    assert c["name"] == "Final model (best)" and c["checkpoint_type"] == c["type"] == "weight" and c["status"] == "completed"
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
    assert c["ttl_seconds"] == 7200 and re.fullmatch(stamp, c["created_at"]) and re.fullmatch(stamp, c["expires_at"])
    made, end = (datetime.datetime.fromisoformat(c[k]).timestamp() for k in ("created_at", "expires_at"))
    assert before <= made <= time.time() and end - made == 7200
    assert (c["train_attn"], c["train_mlp"], c["train_unembed"]) == (True, True, True) and c["model_id"] == run.id
    full = Run(w, training_mode="full_ft").save()
    assert (full["train_attn"], full["train_mlp"], full["train_unembed"], full["expires_at"]) == (None,) * 4
    assert full["path"].endswith("/checkpoints/ckpt-000001") and full["name"] is None


def test_the_same_name_in_both_ways_gives_two_paths_and_nothing_is_overwritten(w, run):
    assert run.export(path="step-100") == f"weaver://{run.id}/checkpoints/sampler-step-100"
    assert [run.save(name="step-100")["path"].rsplit("/", 1)[1] for _ in range(3)] == ["step-100", "step-100-2", "step-100-3"]
    assert run.export(path="step-100").endswith("/sampler-step-100-2")


def test_a_lifetime_is_a_whole_number_of_seconds_up_to_ten_years(w, run):
    c = run.save()
    for ttl in (0, -1, 1.5, "3600", True, 315360001, [1]):
        error(w.call("PATCH", run.path + "/checkpoints/ttl", {"path": c["path"], "ttl_seconds": ttl}), 400, "invalid_ttl")
        for route in ("/checkpoints", "/export-sampler", "/export-hf"):
            error(w.call("POST", run.path + route, {"type": "weight", "ttl_seconds": ttl}), 400, "invalid_ttl")
    assert w.call("PATCH", run.path + "/checkpoints/ttl", {"path": c["path"], "ttl_seconds": 315360000}).status == 200
    error(w.call("PATCH", run.path + "/checkpoints/ttl", {"path": f"weaver://{run.id}/checkpoints/none", "ttl_seconds": 5}), 404,
          "checkpoint_not_found")


def test_a_checkpoint_of_another_run_of_another_base_is_refused(w, run):
    c = Run(w, "tiny-qwen2", lora_config={"rank": 4, "seed": 3}).save()
    refused = error(w.call("POST", run.path + "/load", {"path": c["path"]}), 409, "checkpoint_incompatible")
    assert refused["details"]["differs"] == "base model"


# ---- operations that fail ----

def test_weights_that_are_not_finite_any_more_fail_the_pass_and_the_run_can_be_mended(w):
    run = Run(w, training_mode="full_ft")
    c = run.save()
    want = run.logprobs()
    run.backward()
    run.step(3.3e38, beta1=0, weight_decay=1)
    end = w.wait(w.post(run.path + "/forward-backward-passes", run.backward_body()), "error")
    assert end["error"] == end["error_code"] == "training_failed" and end["retryable"] is False
    assert end["error_details"]["operation_id"] == end["id"] and end["error_message"] and "response" not in end
    run.load(c["path"])
    assert run.logprobs() == want


def test_what_does_not_fit_into_the_memory_is_refused_before_anything_is_read(make_server):
    server = make_server({**ENV, "CAIRN_TRAIN_MB": "1"}, model=None)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 4})
    end = w.wait(w.post(run.path + "/forward-backward-passes", run.backward_body([datum(i, 500) for i in range(8)])), "error")
    assert end["error"] == "out_of_memory" and end["retryable"] is True
    assert run.step()["metrics"]["skipped"] == 1, "no gradient was added"


def test_an_address_says_what_is_wrong_with_it(w, run):
    artifact = w.run(f"/checkpoints/{run.save()['id']}/export", {})
    f = w.get(f"/artifacts/{artifact['id']}/download")["files"][0]
    path = "/" + f["url"].split("/", 3)[3]
    bare = Weaver(w.server, key=None)
    call = lambda p, **headers: bare.server.call("GET", p, headers=headers)
    assert call(path).status == 200
    error(call(path[:-2]), 403, "link_expired")
    error(call(path, Range=f"bytes={f['size']}-"), 416, "range_not_satisfiable")
