"""Sampler exports as models of /v1: chats and completions on a weaver:// path, beside the resident."""
import uuid

import pytest
from conftest import check_error, wait_until
from trainer import Trainer
from weaver_http import ENV, KEY, Run, Weaver

BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def own(make_server):
    return make_server(ENV)


@pytest.fixture(scope="module", params=["lora", "full_ft"])
def run(own, request):
    run = Run(Weaver(own).connect(), training_mode=request.param, lora_config={"rank": 8, "seed": 7})
    run.train(6, 1e-2)
    return run


def complete(own, model, headers=BEARER, **fields):
    return own.post("/v1/completions", {"model": model, "prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0, **fields}, headers=headers)


def test_a_completion_runs_on_the_export(own, run):
    path = run.export(path="v1")
    answer = complete(own, path)
    assert answer.status == 200 and answer.json()["model"] == path
    assert answer.header("X-miLLM-Model") == f'"{path}";origin=export;commits=0'
    base = complete(own, own.model).json()["choices"][0]["text"]
    assert answer.json()["choices"][0]["text"] != base
    assert complete(own, own.model).json()["choices"][0]["text"] == base, "the resident is what it was"
    assert complete(own, path).json()["choices"][0]["text"] == answer.json()["choices"][0]["text"]
    chat = own.post("/v1/chat/completions", {"model": path, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}, headers=BEARER)
    assert chat.status == 200 and chat.json()["model"] == path


def test_its_log_probabilities_are_the_trainers(own, run):
    path = run.export(path="bits")
    got = complete(own, path, prompt=[5, 6, 7, 8], max_tokens=1, echo=True, logprobs=0).json()["choices"][0]["logprobs"]["token_logprobs"]
    data = [{"model_input": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}, "loss_fn_inputs": {"target_tokens": [6, 7, 8]}}]
    want = run.forward(data)["result"]["loss_fn_outputs"][0]["logprobs"]["data"]
    assert got[-4:-1] == pytest.approx(want, abs=1e-6)


def test_exports_are_listed_as_long_as_they_live(own, run):
    path = run.export(path="listed")
    assert path in {m["id"] for m in own.get("/v1/models").json()["data"]}
    assert own.get("/v1/models/" + path).json()["id"] == path
    saved = run.save(name="no-export")["path"]
    assert saved not in {m["id"] for m in own.get("/v1/models").json()["data"]}
    assert complete(own, saved).status == 200, "any checkpoint may be named"


def test_a_key_is_needed_and_a_path_must_live(own, run):
    path = run.export(path="key")
    for headers in (None, {"Authorization": "Bearer sk-wrong"}):
        answer = complete(own, path, headers=headers)
        assert answer.status == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    for bad in (f"weaver://{uuid.uuid4()}/checkpoints/x", "weaver://"):
        answer = complete(own, bad)
        assert answer.status == 404 and answer.json()["error"]["code"] == "model_not_found"


def test_a_path_whose_time_is_over_says_so(own, run):
    path = run.export(path="short", ttl_seconds=1)
    wait_until(lambda: path not in {m["id"] for m in own.get("/v1/models").json()["data"]})
    check_error(complete(own, path), 410, "checkpoint_expired", "model")
    embedding = own.post("/v1/embeddings", {"model": path, "input": "a"}, headers=BEARER)
    check_error(embedding, 410, "checkpoint_expired", "model")
    check_error(own.get("/v1/models/" + path), 404, "model_not_found", "model")


def test_torn_weights_are_told_before_an_export_is_looked_up(make_server):
    server = make_server({**ENV, "WEIGHTS_COMMIT_WATCHDOG_S": "0.3"})
    path = Run(Weaver(server).connect(), lora_config={"rank": 2}).export(path="torn")
    assert server.get("/v1/models/" + path).status == 200
    trainer = Trainer(server)
    trainer.do("quiesce")
    trainer.do("commit-begin")
    wait_until(lambda: server.get("/v1/models").status == 503)
    check_error(server.get("/v1/models/" + path), 503, "weights_torn")
    check_error(complete(server, path), 503, "weights_torn")
    server.stop()
