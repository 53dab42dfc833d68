"""tools and tool_choice: forced calls fit their schemas in every family's form; calls are told apart from text."""
import json
import shutil

import pytest
from conftest import MODELS, check_error
from schemas import fits

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a place", "parameters": {
    "type": "object", "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}, "now": {"type": "boolean"}},
    "required": ["unit", "now"], "additionalProperties": False}}}
TIME = {"type": "function", "function": {"name": "get_time"}}
PLACE = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "required": ["names", "near"], "properties": {
    "names": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,4}$"}, "minItems": 1, "maxItems": 3},
    "near": {"anyOf": [{"type": "null"}, {"type": "object", "required": ["lat"], "properties": {
        "lat": {"type": "number", "minimum": -90, "maximum": 90}}}]}}}}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
LLAMA_TEMPLATE = ("{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
                  "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% if m.tool_calls %}"
                  "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def wide_copy(home, model, template=None):
    """The model's directory with a longer context, and another chat template."""
    shutil.copytree(MODELS / model, home)
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
    if template:
        config = json.loads((home / "tokenizer_config.json").read_text())
        (home / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return home


@pytest.fixture(scope="module", params=["tagged", "python", "bare"])
def tool_server(request, make_server, tmp_path_factory):
    """One server for each form: Qwen's tags, LFM2's Python, Llama's bare object."""
    model = {"tagged": "tiny-qwen3", "python": "tiny-lfm2", "bare": "tiny-llama"}[request.param]
    home = wide_copy(tmp_path_factory.mktemp(request.param) / model, model, LLAMA_TEMPLATE if request.param == "bare" else None)
    server = make_server(model=None)
    row = server.register(home)
    server.load(row["id"])
    server.model, server.row = row["name"], row["id"]
    yield server
    server.stop()


def only_choice(answer):
    assert answer.status == 200, answer
    return answer.json()["choices"][0]


def check_call(call, tool):
    assert call["type"] == "function" and call["id"].startswith("call_") and call["function"]["name"] == tool["function"]["name"]
    value = json.loads(call["function"]["arguments"])
    assert fits(value, tool["function"].get("parameters", {"type": "object", "properties": {}})), call
    return value


def test_a_named_tool_is_called_once_with_arguments_that_fit(tool_server):
    for tool in (WEATHER, TIME, PLACE):
        named = {"type": "function", "function": {"name": tool["function"]["name"]}}
        for fields in ({"temperature": 0}, {"seed": 1}, {"seed": 2}, {"seed": 3, "temperature": 2}):
            choice = only_choice(tool_server.chat("Weather?", tools=[WEATHER, TIME, PLACE], tool_choice=named, max_tokens=256, **fields))
            assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
            assert len(choice["message"]["tool_calls"]) == 1
            check_call(choice["message"]["tool_calls"][0], tool)


def test_required_gives_at_least_one_call(tool_server):
    tools = {t["function"]["name"]: t for t in (WEATHER, TIME)}
    for seed in range(4):
        choice = only_choice(tool_server.chat("Weather?", tools=list(tools.values()), tool_choice="required", max_tokens=300, seed=seed))
        assert choice["message"]["tool_calls"]
        for call in choice["message"]["tool_calls"]:
            check_call(call, tools[call["function"]["name"]])
    choice = only_choice(tool_server.chat("x", tools=[TIME], tool_choice="required", parallel_tool_calls=False, max_tokens=300, seed=1))
    assert len(choice["message"]["tool_calls"]) == 1 and choice["finish_reason"] == "tool_calls"


def test_a_streamed_call_is_the_same_call(tool_server):
    fields = {"tools": [WEATHER, TIME], "tool_choice": "required", "max_tokens": 300, "seed": 4, "logprobs": True}
    whole = only_choice(tool_server.chat("Weather?", **fields))
    _, chunks = tool_server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Weather?"}], **fields})
    entries = [c for chunk in chunks for c in chunk["choices"]]
    parts = [p for c in entries for p in c["delta"].get("tool_calls", [])]
    assert [p["index"] for p in parts] == list(range(len(parts)))
    assert [p["function"] for p in parts] == [c["function"] for c in whole["message"]["tool_calls"]]
    assert "".join(c["delta"].get("content", "") for c in entries) == ""
    assert entries[-1]["finish_reason"] == "tool_calls" == whole["finish_reason"]
    tokens = [t["token"] for c in entries for t in (c.get("logprobs") or {}).get("content", [])]
    assert tokens == [t["token"] for t in whole["logprobs"]["content"]]


def test_choices_and_seeds_go_with_forced_calls(tool_server):
    fields = {"tools": [PLACE], "tool_choice": "required", "parallel_tool_calls": False, "n": 3, "seed": 9, "max_tokens": 300}
    answers = [tool_server.chat("x", **fields).json()["choices"] for _ in range(2)]
    calls = [[[c["function"] for c in choice["message"]["tool_calls"]] for choice in a] for a in answers]
    assert calls[0] == calls[1] and len({json.dumps(c) for c in calls[0]}) > 1


def test_tools_and_earlier_calls_are_in_the_prompt(tool_server):
    plain = tool_server.chat("Weather?", max_tokens=1).json()["usage"]["prompt_tokens"]
    offered = tool_server.chat("Weather?", tools=[TIME], max_tokens=1).json()["usage"]["prompt_tokens"]
    none = tool_server.chat("Weather?", tools=[TIME], tool_choice="none", max_tokens=1)
    assert offered > plain == none.json()["usage"]["prompt_tokens"]
    talk = [{"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"unit\": \"celsius\", \"now\": true}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "12 degrees"}]
    answer = tool_server.chat(talk, tools=[WEATHER], tool_choice="none", max_tokens=1)
    assert answer.status == 200 and answer.json()["usage"]["prompt_tokens"] > plain
    assert answer.header("X-miLLM-Ignored-Fields") is None


def test_strict_is_kept_by_forced_calls_and_reported_by_free_ones(tool_server):
    tool = {"type": "function", "function": {**TIME["function"], "strict": True, "mood": "good"}}
    free = tool_server.chat("x", tools=[tool], max_tokens=1)
    assert free.header("X-miLLM-Ignored-Fields") == '"tools[0].function.mood", "tools[0].function.strict"'
    forced = tool_server.chat("x", tools=[tool], tool_choice="required", max_tokens=300, seed=1)
    assert forced.header("X-miLLM-Ignored-Fields") == '"tools[0].function.mood"'


def test_a_free_answer_is_text_or_calls(tool_server):
    for fields in ({"temperature": 0}, {"seed": 5}, {"seed": 6, "tool_choice": "auto"}):
        message = only_choice(tool_server.chat("Weather?", tools=[WEATHER], max_tokens=48, **fields))["message"]
        for call in message.get("tool_calls", []):
            json.loads(call["function"]["arguments"])
        assert message["content"] is not None or message["tool_calls"]


BAD = [
    ({"tools": 7}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools[0].function.parameters"),
    ({"tools": [TIME, TIME]}, "tools[1].function.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [WEATHER], "tool_choice": "required", "allowed_token_ids": [1]}, "allowed_token_ids"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "[1]"}}]}]},
     "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "messages[0].content"),
]


@pytest.mark.parametrize("fields, param", BAD, ids=[p + ":" + str(i) for i, (_, p) in enumerate(BAD)])
def test_what_is_wrong_is_refused_by_its_place(server, fields, param):
    body = {"model": server.model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **fields}
    check_error(server.post("/v1/chat/completions", body), 400, "invalid_parameter", param)


def test_a_schema_outside_the_subset_is_refused_when_it_must_be_kept(server):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"multipleOf": 2}}}}}
    check_error(server.chat("x", tools=[tool], tool_choice="required", max_tokens=1), 400, "response_format_unsupported",
                "tools[0].function.parameters.properties.a.multipleOf")


def test_a_template_without_tools_refuses_them_by_name(server):
    check_error(server.chat("x", tools=[TIME], max_tokens=1), 400, "field_not_honoured", "tools")
    assert server.chat("x", tools=[TIME], tool_choice="none", max_tokens=1).status == 200
    calls = [{"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]
    check_error(server.chat(calls, max_tokens=1), 400, "field_not_honoured", "messages[0].tool_calls")
