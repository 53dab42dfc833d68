"""Field policy: every field is honoured, reported, or refused by its name (7.1, S27)."""
import json
import re
import urllib.parse

import pytest
from conftest import check_error


def ignored(answer):
    text = answer.header("X-miLLM-Ignored-Fields")
    if text is None:
        return []
    assert len(text) <= 1024 and re.fullmatch(r'"[^"]*"(, "[^"]*")*', text)
    return [urllib.parse.unquote(x) for x in re.findall(r'"([^"]*)"', text)]


def test_unknown_fields_are_reported_with_their_places(server):
    messages = [{"role": "user", "content": "a", "mood": "good"}]
    answer = server.chat(messages, max_tokens=1, foo=1, user="u1")
    assert answer.status == 200 and set(ignored(answer)) == {"foo", "user", "messages[0].mood"}
    answer, _ = server.stream("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "foo": 1})
    assert set(ignored(answer)) == {"foo", "messages[0].mood"}
    assert ignored(server.complete("a", max_tokens=1, bar=[1])) == ["bar"]
    assert server.complete("a", max_tokens=1).header("X-miLLM-Ignored-Fields") is None


TOOL = {"type": "function", "cache": 1, "function": {"name": "f", "parameters": {"type": "object"}, "cost": 2}}


@pytest.mark.parametrize("body, places", [
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]}, {"messages[0].content[0].cache_control"}),
    ({"response_format": {"type": "text", "colour": 1}}, {"response_format.colour"}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "size": 1}, "colour": None}},
     {"response_format.json_schema.size"}),
    ({"stream_options": {"include_usage": True}}, {"stream_options.include_usage"}),
    ({"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}, {"stream_options.include_obfuscation"}),
])
def test_unknown_keys_inside_a_field_are_reported_too(server, body, places):
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, **body}
    if body.get("stream"):
        answer, _ = server.stream("/v1/chat/completions", body)
    else:
        answer = server.post("/v1/chat/completions", {"model": server.model, **body})
    assert answer.status == 200 and set(ignored(answer)) == places
    strict = server.post("/v1/chat/completions", {"model": server.model, **body}, headers={"X-miLLM-Strict": "1"})
    check_error(strict, 400, "unused_fields_refused", min(places))


def test_keys_of_tools_and_calls_are_reported_where_they_stand(server):
    calls = [{"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}", "output": 1}}]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "c", "content": "b"}]
    body = {"model": server.model, "messages": messages, "tools": [TOOL], "max_tokens": 1,
            "tool_choice": {"type": "function", "function": {"name": "f", "why": 1}, "mode": 2}}
    message = check_error(server.post("/v1/chat/completions", body, headers={"X-miLLM-Strict": "1"}), 400, "unused_fields_refused")["message"]
    for place in ("tools[0].cache", "tools[0].function.cost", "tool_choice.mode", "tool_choice.function.why",
                  "messages[1].tool_calls[0].index", "messages[1].tool_calls[0].function.output"):
        assert place in message, message


def test_a_long_list_of_unknown_fields_is_cut_and_counted(server):
    many = server.complete("a", max_tokens=1, **{f"field_number_{i}": i for i in range(200)})
    names = ignored(many)
    more = int(re.fullmatch(r"\+(\d+) more", names[-1])[1])
    assert len(names) - 1 + more == 200


def test_a_field_name_cannot_make_a_header(server):
    answer = server.complete("a", max_tokens=1, **{'a"b é\r\nX-Bad: 1%': 1})
    assert answer.status == 200 and answer.header("X-Bad") is None
    assert ignored(answer) == ['a"b é\r\nX-Bad: 1%']


def test_strict_mode_refuses_what_would_be_ignored(server):
    for value in ("true", "1"):
        error = check_error(server.complete("a", max_tokens=1, foo=1, bar=2, headers={"X-miLLM-Strict": value}), 400,
                            "unused_fields_refused", "foo")
        assert "foo" in error["message"] and "bar" in error["message"]
        assert server.complete("a", max_tokens=1, headers={"X-miLLM-Strict": value}).status == 200
    for value in ("false", "0"):
        assert server.complete("a", max_tokens=1, foo=1, headers={"X-miLLM-Strict": value}).status == 200
    check_error(server.complete("a", headers={"X-miLLM-Strict": "maybe"}), 400, "invalid_parameter", "X-miLLM-Strict")


REFUSED = {
    "chat": [("tools", [{"type": "function", "function": {"name": "f"}}]), ("functions", [{}]), ("audio", {}), ("modalities", ["audio"]), ("dimensions", 5), ("pooling", "cls"), ("normalize", True), ("profile", "x"),
             ("steering_intensity", 1.0), ("steering", {}), ("return_sae_activations", True)],
    "complete": [("suffix", "end"), ("top_logprobs", 1), ("profile", "x"), ("tools", [{}]), ("response_format", {"type": "json_object"})],
}


@pytest.mark.parametrize("route, field, value", [(r, f, v) for r, rows in REFUSED.items() for f, v in rows])
def test_what_cannot_be_honoured_is_refused_by_name(server, route, field, value):
    check_error(getattr(server, route)("a", **{field: value}), 400, "field_not_honoured", field)


def test_neutral_values_and_null_are_accepted_everywhere(server):
    neutral = {"n": 1, "logprobs": False, "response_format": {"type": "text"}, "tools": [], "logit_bias": {}, "pooling": "mean",
               "normalize": False, "tool_choice": "none", "modalities": ["text"]}
    answer = server.chat("a", max_tokens=1, **neutral)
    assert answer.status == 200 and ignored(answer) == []
    names = ("temperature top_p n max_tokens stop seed logprobs top_logprobs frequency_penalty presence_penalty response_format tools "
             "logit_bias suffix audio steering stream stream_options allowed_token_ids extra_messages chat_template_kwargs").split()
    assert server.chat("a", max_completion_tokens=1, **dict.fromkeys(names)).status == 200
    completion = server.complete("a", max_tokens=1, **{**neutral, "tool_choice": "none"})
    assert completion.status == 200 and ignored(completion) == [] and completion.json()["choices"][0]["logprobs"] is None
    check_error(server.complete("a", max_tokens=1, logprobs=True), 400, "invalid_parameter", "logprobs")


def test_a_field_that_is_null_is_as_if_it_were_not_there(server):
    strict = {"X-miLLM-Strict": "1"}
    said = {"role": "assistant", "content": "b", "refusal": None, "audio": None, "annotations": None, "tool_calls": None, "function_call": None}
    nothing = {"user": None, "suffix": None, "foo": None}
    chat = server.chat([{"role": "user", "content": "a"}, said, {"role": "user", "content": "c"}], max_tokens=1, headers=strict, **nothing)
    assert chat.status == 200 and ignored(chat) == []
    assert server.complete("a", max_tokens=1, headers=strict, **nothing).status == 200
    assert server.post("/v1/embeddings", {"model": server.model, "input": "a", **nothing}, headers=strict).status == 200
    check_error(server.chat([{**said, "refusal": "no"}], max_tokens=1, headers=strict), 400, "unused_fields_refused", "messages[0].refusal")


BAD = {"temperature": (-0.1, 2.1, "1", True, [1]), "top_p": (-0.1, 1.1, "1"), "frequency_penalty": (2.1, -2.1, "1"),
       "presence_penalty": (2.1, -2.1), "n": (0, -1, 1000000, 1.5, "2", True), "seed": (True, -1, 1.5, "7"),
       "stop": (7, [7], {"a": 1}, ["a", None], "", ["1", "2", "3", "4", "5"], "x" * 1025), "top_k": (1.5, "x", -2),
       "logit_bias": ({"x": 1}, {"5": 101}, {"5": "a"}, {"-1": 1}, [1], {"99999999": 1}), "allowed_token_ids": ([], [-1], "5", [1.5], [True]),
       "stream_options": (7, {"include_usage": "yes"}), "stream": ("yes", 1), "stop_token_ids": ([], "x", [-1])}


@pytest.mark.parametrize("field, value", [(f, v) for f, vs in BAD.items() for v in vs], ids=str)
def test_a_value_out_of_range_is_refused_with_its_name(server, field, value):
    for answer in (server.chat("a", **{field: value}), server.complete("a", **{field: value})):
        check_error(answer, 400, "invalid_parameter", field)


def test_a_number_beyond_64_bits_is_refused(server):
    check_error(server.complete("a", seed=2**63), 400, "invalid_parameter")


@pytest.mark.parametrize("value", (0, -1, 1.5, "5", True))
def test_max_tokens_must_be_a_positive_whole_number(server, value):
    for field in ("max_tokens", "max_completion_tokens"):
        check_error(server.chat("a", **{field: value}), 400, "invalid_parameter", field)


def test_both_spellings_of_the_limit_must_agree(server):
    assert server.chat("a", max_tokens=2, max_completion_tokens=2).status == 200
    error = check_error(server.chat("a", max_tokens=3, max_completion_tokens=4), 400, "invalid_parameter")
    assert "max_tokens" in error["message"] and "max_completion_tokens" in error["message"]


@pytest.mark.parametrize("text", ("NaN", "Infinity", "1e999", "1e400"))
def test_a_number_that_is_none_never_reaches_the_sampler(server, text):
    body = json.dumps({"model": server.model, "prompt": "a", "temperature": 77}).replace("77", text).encode()
    check_error(server.post("/v1/completions", body), 400, "invalid_parameter")


def test_the_message_counts_the_other_findings(server):
    many = {"temperature": 9, "top_p": 9, "n": 0, "max_tokens": -1, "seed": -1, "stop": 7, "frequency_penalty": 9, "presence_penalty": 9}
    error = check_error(server.complete("a", **many), 400, "invalid_parameter")
    assert error["param"] in many and " 7 more" in error["message"]


def test_the_model_comes_before_the_other_fields(server):
    body = {"model": "no-such", "prompt": 7, "temperature": 9}
    check_error(server.post("/v1/completions", body), 404, "model_not_found", "model")
    for model in (7, "", None):
        check_error(server.post("/v1/completions", {**body, "model": model}), 400, "invalid_parameter", "model")


def test_the_load_policy_is_auto_or_refuse_in_any_case(server):
    for value in ("refuse", "AUTO"):
        assert server.complete("a", max_tokens=1, headers={"X-miLLM-Load-Policy": value}).status == 200
    check_error(server.complete("a", headers={"X-miLLM-Load-Policy": "x"}), 400, "invalid_parameter", "X-miLLM-Load-Policy")


@pytest.mark.parametrize("messages, param", [
    ([], "messages"), (7, "messages"), (["a"], "messages[0]"), ([{"role": "wizard", "content": "a"}], "messages[0].role"),
    ([{"role": "user", "content": "a"}, {"content": "b"}], "messages[1].role"), ([{"role": "user", "content": 7}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"), ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": []}], "messages[0].content"), ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]")])
def test_a_bad_message_is_named_by_its_place(server, messages, param):
    check_error(server.post("/v1/chat/completions", {"model": server.model, "messages": messages}), 400, "invalid_parameter", param)


def test_parts_other_than_text_and_tool_calls_are_refused_by_place(server):
    image = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]}]
    check_error(server.chat(image), 400, "field_not_honoured", "messages[0].content[1]")
    calls = [{"role": "assistant", "content": "a", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]
    check_error(server.chat(calls), 400, "field_not_honoured", "messages[0].tool_calls")


def test_template_variables_come_in_three_forms(server):
    for value in ({}, {"enable_thinking": False}, '{"enable_thinking": false}', [{"a": 1}, {"b": 2}]):
        answer = server.chat("a", max_tokens=1, chat_template_kwargs=value)
        assert answer.status == 200 and ignored(answer) == []
    for value in (7, "[1]", "{", [1]):
        check_error(server.chat("a", chat_template_kwargs=value), 400, "invalid_parameter", "chat_template_kwargs")


@pytest.mark.parametrize("prompt", ([], [-1], [1.5], [[1], "a"], [True], ["a", 7], {"a": 1}, 7, [[]], [1, 99999999], None))
def test_a_prompt_that_is_none_is_refused(server, prompt):
    check_error(server.complete(prompt), 400, "invalid_parameter", "prompt")
