"""Requests with one or two things wrong: whatever a client sends, the answer is whole JSON and never a fault of the server."""
import copy
import json
import random

import pytest
from conftest import MODELS, TRAINER
from trainer import FIELDS
from weaver_http import ENV, KEY, Run, Weaver, datum, tokens

ROUNDS = 60  # of each request
TALK = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"type": "array", "items": {"pattern": "^a+$"}},
                                           "c": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}]}},
          "required": ["a"], "$defs": {"x": {"enum": [1, "b", None]}}, "additionalProperties": False}
CHUNKS = {"chunks": [{"type": "encoded_text", "tokens": tokens(1, 7)}]}
WRONG = [None, True, 0, -1, 2, 0.5, 1e308, 1e-320, 2**31, 2**53, 2**63 - 1, -2**63, 10**30, "", "a", "\0", "a\0b", "x" * 3000, "a" + "\u20ac" * 900,
         "../../etc/passwd", "%s%n", "weaver://x/y", "NaN", [], {}, [[]], [None], [1, "a", None], {"": ""}, {"a": {"b": {"c": []}}}, [0] * 2000,
         [[[[[[[[[]]]]]]]]], {"type": "object"}]


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server({**ENV, "WEIGHTS_QUIESCE_MAX_HOLD_S": "1", "WEIGHTS_COMMIT_WATCHDOG_S": "1"})
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 2, "seed": 3})
    run.train(1)
    server.saved, server.exported = run.save("weight_and_optimizer"), run.export(path="x")
    server.run, server.session = run.id, w.session
    server.sampler = w.post(f"/sessions/{w.session}/sampling-sessions", {"sampling_session_seq_id": 1, "model_path": server.exported}, 201)["id"]
    return server


def openai(server):
    answer = {"model": server.model, "max_tokens": 4}
    return [
        ("/v1/chat/completions", {**answer, "messages": TALK, "temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["a"], "seed": 1,
                                  "logit_bias": {"5": 3}, "logprobs": True, "top_logprobs": 2, "frequency_penalty": 0.1}),
        ("/v1/chat/completions", {**answer, "tools": [TOOL], "tool_choice": "auto", "messages": [
            *TALK, {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
            {"role": "tool", "tool_call_id": "x", "content": "2"}]}),
        ("/v1/chat/completions", {**answer, "messages": TALK, "response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "strict": True, "schema": SCHEMA}}}),
        ("/v1/completions", {**answer, "prompt": ["a", "b"], "echo": True, "logprobs": 2, "best_of": 1, "min_p": 0.1, "top_k": 5}),
        ("/v1/completions", {**answer, "prompt": [[1, 2, 3], [4]], "echo": True, "max_tokens": 0, "logprobs": 0}),
        ("/v1/embeddings", {"model": server.model, "input": ["a", "b"], "encoding_format": "base64", "normalize": True}),
        ("/v1/batches", {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"a": "b"}}),
    ]


def management(server):
    manifest = {"manifest": {**FIELDS, "run_id": "r", "step": 1}}
    return [("/api/weights/" + route, body) for route, body in (
        ("attach", {"client": "c", "pid": 1}), ("save", manifest), ("plan/save", manifest), ("plan/load", {"model_id": server.row}),
        ("load", {"name": "tiny-llama:r:step-1"}), ("promote", {"path": server.exported, **manifest}))] + [
        ("/api/models", {"source": "local", "local_path": str(MODELS / "tiny-qwen3"), "custom_name": "q", "quantization": "FP16"}),
        ("/api/models/preview", {"source": "local", "local_path": str(MODELS / "tiny-qwen3")}),
        (f"/api/models/{server.row}/lease", {"ttl_seconds": 1, "holder": "h", "reason": "r"}),
        ("/api/adapters/apply", {"path": "x"}),
    ]


def training(server):
    model, sampler = f"/models/{server.run}", f"/sampling-sessions/{server.sampler}"
    ppo = {"loss_fn": "ppo", "loss_fn_config": {"clip_ratio": 0.2, "temperature": 1.0, "reduction": "sum"}, "data": [
        datum(1, 5, logprobs={"data": [-1.0] * 5, "dtype": "float32"}, advantages={"data": [1.0] * 5}, weights={"data": [1.0] * 5})]}
    return [("/api/v1" + path, body) for path, body in (
        ("/sessions", {"tags": ["c"], "sdk_version": "1.19.2", "user_metadata": {}}),
        (f"/sessions/{server.session}/metrics", {"metrics": [{"name": "a", "value": 1.5, "labels": {"a": "b"}, "step": 1}]}),
        (model + "/forward-backward-passes", {"payload": {"forward_backward_input": ppo}}),
        (model + "/forward-passes", {"payload": {"forward_input": {"loss_fn": "forward_logprob", "data": [datum(1, 5), datum(2, 1)]}}}),
        (model + "/optimizer-steps", {"payload": {"adam_params": {"learning_rate": 1e-4, "beta1": 0.9, "eps": 1e-8}, "metadata": {"a": [1]}}}),
        (model + "/checkpoints", {"type": "weight", "name": "n", "ttl_seconds": 100}),
        (model + "/load", {"path": server.saved["path"], "include_optimizer": True}),
        (model + "/export-hf", {"format": "huggingface", "merge_adapter": True, "force": False}),
        (f"/sessions/{server.session}/sampling-sessions", {"model_path": server.exported, "base_model": "tiny-llama"}),
        (sampler + "/samples", {"prompt": CHUNKS, "num_samples": 2, "sampling_params": {"temperature": 1.0, "top_k": 5, "max_tokens": 5, "seed": 3}}),
        (sampler + "/logprobs", {"prompt": CHUNKS, "topk_prompt_logprobs": 2}),
    )]


def places(value, at=()):
    """Where something can be replaced: the keys that lead there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:6]) if isinstance(value, list) else ()
    found = [at] if at else []
    for key, v in inner:
        found += places(v, (*at, key))
    return found


def mutate(rng, body):
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 2])):
        *path, last = rng.choice(places(body) or [("extra",)])
        holder = body
        for key in path:
            holder = holder[key]
        if rng.random() < 0.15:
            del holder[last]
        elif isinstance(holder, dict) and rng.random() < 0.1:
            holder[rng.choice(["extra", "", "x" * 300])] = copy.deepcopy(rng.choice(WRONG))
        else:
            holder[last] = copy.deepcopy(rng.choice(WRONG))
        if not body:
            break
    return body


@pytest.mark.parametrize("face", [openai, management, training])
def test_a_mutated_request_is_answered_or_refused(own, face):
    rng = random.Random(face.__name__)
    for path, body in face(own):
        head = {"X-WEAVER-API-KEY": KEY} if path.startswith("/api/v1") else {"Authorization": f"Bearer {TRAINER}"} if "/api/" in path else {}
        for _ in range(ROUNDS):
            sent = mutate(rng, body)
            answer = own.post(path, sent, headers=head)
            assert answer.status < 500 or answer.status in (503, 507), (path, json.dumps(sent)[:600], answer)
            if answer.body and "json" in answer.header("Content-Type"):
                answer.json()
    assert own.get("/api/health").status == 200
