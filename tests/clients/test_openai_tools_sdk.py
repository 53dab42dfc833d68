"""The real `openai` package: structured outputs from pydantic models, tools, streamed calls, a talk with a tool."""
import enum
import json
import sys
from pathlib import Path
from typing import List, Literal, Optional, Union

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from conftest import make_server  # noqa: E402,F401  (a fixture)
from test_openai_tools import wide_copy  # noqa: E402

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")
ASK = [{"role": "user", "content": "Weather?"}]


class Unit(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Wind(pydantic.BaseModel):
    knots: int = pydantic.Field(ge=0, le=99, description="at ten metres")
    gusts: Optional[int] = pydantic.Field(default=None, le=9, ge=0)


class Report(pydantic.BaseModel):
    unit: Unit
    sky: Literal["clear", "cloudy"]
    wind: Wind
    codes: List[Union[Literal["RA", "SN"], None]] = pydantic.Field(max_length=3)


class get_weather(pydantic.BaseModel):
    """Weather of a place."""

    unit: Unit
    now: bool


@pytest.fixture(scope="module")
def client(make_server, tmp_path_factory):  # noqa: F811
    server = make_server(model=None)
    row = server.register(wide_copy(tmp_path_factory.mktemp("sdk") / "tiny-qwen3", "tiny-qwen3"))
    server.load(row["id"])
    yield openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="unused", max_retries=0, timeout=120), row["name"]
    server.stop()


def test_a_pydantic_model_is_parsed_from_any_answer(client):
    api, model = client
    for seed in range(4):
        answer = api.chat.completions.parse(model=model, messages=ASK, response_format=Report, max_tokens=400, seed=seed)
        report = answer.choices[0].message.parsed
        assert isinstance(report, Report) and 0 <= report.wind.knots <= 99 and len(report.codes) <= 3


def test_a_streamed_model_is_parsed_at_the_end(client):
    api, model = client
    with api.chat.completions.stream(model=model, messages=ASK, response_format=Report, max_tokens=400, seed=9) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Report)


def test_a_pydantic_tool_is_called_and_parsed(client):
    api, model = client
    answer = api.chat.completions.parse(model=model, messages=ASK, tools=[openai.pydantic_function_tool(get_weather)],
                                        tool_choice="required", parallel_tool_calls=False, max_tokens=300, seed=1)
    call = answer.choices[0].message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, get_weather) and answer.choices[0].finish_reason == "tool_calls"


def test_streamed_calls_are_put_together(client):
    api, model = client
    ask = dict(model=model, messages=ASK, tools=[openai.pydantic_function_tool(get_weather)], tool_choice="required", max_tokens=400, seed=4)
    with api.chat.completions.stream(**ask) as stream:
        done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    plain = api.chat.completions.create(**ask).choices[0]
    assert len(done) == len(plain.message.tool_calls) and final.finish_reason == plain.finish_reason == "tool_calls"
    assert [c.function.arguments for c in final.message.tool_calls] == [c.function.arguments for c in plain.message.tool_calls]


def test_a_talk_goes_on_with_the_result_of_a_call(client):
    api, model = client
    tools = [openai.pydantic_function_tool(get_weather)]
    first = api.chat.completions.create(model=model, messages=ASK, tools=tools, tool_choice="required", parallel_tool_calls=False,
                                        max_tokens=300, seed=2).choices[0].message
    talk = [*ASK, first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": json.dumps({"degrees": 12})}]
    answer = api.chat.completions.create(model=model, messages=talk, tools=tools, max_tokens=8, temperature=0)
    assert answer.usage.completion_tokens >= 1
