"""response_format: answers are JSON that fits, whatever the weights say; what is not understood is refused."""
import json

import pytest
from conftest import check_error
from schemas import begins_json, fits

SHAPE = {"type": "object", "required": ["color", "ok", "size"], "additionalProperties": False, "properties": {
    "color": {"type": "string", "enum": ["red", "green", "dark \"blue\" é"]}, "ok": {"type": "boolean"},
    "size": {"type": "object", "required": ["unit"], "additionalProperties": False,
             "properties": {"unit": {"type": "string", "enum": ["cm", "in"]}}}}}
LIMITS = {"type": "object", "required": ["n", "x", "id", "tags", "note"], "properties": {
    "n": {"type": "integer", "minimum": -5, "maximum": 40}, "x": {"type": "number", "minimum": 0.5, "maximum": 1.5},
    "id": {"type": "string", "pattern": "^[A-F]{2}-[0-9]{1,3}$"},
    "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "minItems": 1, "maxItems": 4},
    "note": {"type": "string", "minLength": 2, "maxLength": 6}}}
TREE = {"$defs": {"node": {"type": "object", "required": ["v"], "additionalProperties": False, "properties": {
    "v": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    "next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "shape", "strict": True, "schema": schema}}


def ask(server, schema, **fields):
    return server.chat("Describe a shape in JSON.", **{"response_format": schema_format(schema), "max_tokens": 400, "temperature": 1, **fields})


def choices(answer):
    assert answer.status == 200, answer
    return answer.json()["choices"]


@pytest.mark.parametrize("schema", [SHAPE, LIMITS, TREE], ids=["shape", "limits", "tree"])
def test_an_answer_fits_its_schema_at_any_temperature(server, schema):
    for fields in [{"temperature": 0}] + [{"temperature": t, "seed": s} for t in (1, 2) for s in (1, 2, 3)]:
        choice = choices(ask(server, schema, **fields))[0]
        assert choice["finish_reason"] == "stop", choice
        assert fits(json.loads(choice["message"]["content"]), schema), choice


def test_a_stream_and_a_whole_answer_have_the_same_text(server):
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": schema_format(SHAPE), "max_tokens": 400, "seed": 7}
    whole = choices(server.chat("x", **{k: v for k, v in body.items() if k != "messages"}))[0]
    _, chunks = server.stream("/v1/chat/completions", body)
    text = "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])
    assert text == whole["message"]["content"] and fits(json.loads(text), SHAPE)


def test_choices_differ_and_a_seed_repeats_them(server):
    answers = [choices(ask(server, LIMITS, n=4, seed=5, logprobs=True, top_logprobs=2)) for _ in range(2)]
    assert answers[0] == answers[1]
    texts = {c["message"]["content"] for c in answers[0]}
    assert len(texts) > 1 and all(fits(json.loads(t), LIMITS) for t in texts)


def test_log_probabilities_are_those_of_the_free_distribution(server):
    """The mask decides what is drawn; the value told is the model's own."""
    choice = choices(ask(server, {"const": "zz"}, temperature=0, logprobs=True, top_logprobs=1))[0]
    entries = choice["logprobs"]["content"]
    assert "".join(e["token"] for e in entries) == '"zz"' == choice["message"]["content"]
    assert any(e["token"] != e["top_logprobs"][0]["token"] for e in entries)
    assert all(e["logprob"] <= e["top_logprobs"][0]["logprob"] for e in entries)


def test_any_json_object_begins_well_even_when_it_is_cut(server):
    for seed in range(6):
        choice = choices(server.chat("Answer in JSON.", response_format={"type": "json_object"}, max_tokens=120, seed=seed))[0]
        text = choice["message"]["content"]
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)
        else:
            assert choice["finish_reason"] == "length" and begins_json(text), text


def test_sampling_fields_go_with_a_schema(server):
    fields = {"frequency_penalty": 2, "presence_penalty": 1, "repetition_penalty": 1.5, "top_p": 0.3, "min_p": 0.1, "top_k": 3,
              "logit_bias": {"90": 100, "91": -100}, "seed": 1}
    choice = choices(ask(server, SHAPE, **fields))[0]
    assert fits(json.loads(choice["message"]["content"]), SHAPE)


def test_an_answer_ends_where_every_way_on_is_a_stop_id(server):
    """A schema that begins with a brace, and the brace is a stop: nothing is said, and no fault of the model is told."""
    said = server.complete("{", max_tokens=0, echo=True, logprobs=0, return_tokens_as_token_ids=True).json()
    brace = int(said["choices"][0]["logprobs"]["tokens"][-1].removeprefix("token_id:"))
    choice = choices(ask(server, SHAPE, stop_token_ids=[brace]))[0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    _, chunks = server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9,
                                                       "response_format": schema_format(SHAPE), "stop_token_ids": [brace]})
    found = [c["choices"][0] for c in chunks if c["choices"]]
    assert not any(c["delta"].get("content") for c in found) and found[-1]["finish_reason"] == "stop"


def test_a_limit_cuts_and_says_so(server):
    choice = choices(ask(server, SHAPE, max_tokens=3))[0]
    assert choice["finish_reason"] == "length" and begins_json(choice["message"]["content"])


@pytest.mark.parametrize("model", ["tiny-qwen2", "tiny-qwen3", "tiny-lfm2"])
def test_every_family_keeps_to_a_schema(make_server, model):
    server = make_server(model=model)
    for seed in (1, 2):
        choice = choices(ask(server, LIMITS, seed=seed))[0]
        assert fits(json.loads(choice["message"]["content"]), LIMITS), choice
    server.stop()


BAD = [
    (7, "response_format", "response_format_unsupported"),
    ({"type": "xml"}, "response_format", "response_format_unsupported"),
    ({"type": "json_schema"}, "response_format.json_schema", "invalid_parameter"),
    ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema", "invalid_parameter"),
    ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "response_format.json_schema.name", "invalid_parameter"),
    (schema_format({"type": "nonsense"}), "response_format.json_schema.schema.type", "response_format_unsupported"),
    (schema_format({"type": "object", "properties": {"a": {"multipleOf": 3}}}), "response_format.json_schema.schema.properties.a.multipleOf",
     "response_format_unsupported"),
    (schema_format({"type": "string", "pattern": "(?=x)"}), "response_format.json_schema.schema.pattern", "response_format_unsupported"),
    (schema_format({"$ref": "http://example.com/"}), "response_format.json_schema.schema.$ref", "response_format_unsupported"),
    (schema_format(False), "response_format.json_schema.schema", "response_format_unsupported"),
]


@pytest.mark.parametrize("value, param, code", BAD, ids=[p + ":" + str(i) for i, (_, p, _c) in enumerate(BAD)])
def test_what_is_not_understood_is_refused_by_its_place(server, value, param, code):
    check_error(server.chat("x", response_format=value, max_tokens=1), 400, code, param)


def test_fields_that_decide_the_same_are_refused(server):
    check_error(ask(server, SHAPE, allowed_token_ids=[1, 2]), 400, "invalid_parameter", "allowed_token_ids")
    check_error(ask(server, SHAPE, max_tokens=1, logprobs=True), 400, "invalid_parameter", "response_format")
    check_error(server.complete("x", response_format={"type": "json_object"}), 400, "field_not_honoured", "response_format")
