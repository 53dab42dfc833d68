"""The real `openai` package against cairn serve: chat, streams, completions, errors, sync and async."""
import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from conftest import make_server, server  # noqa: E402,F401  (fixtures)

openai = pytest.importorskip("openai")
HELLO = [{"role": "user", "content": "The river ran low"}]


@pytest.fixture(scope="module")
def client(server):  # noqa: F811
    return openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="unused", max_retries=0, timeout=120)


def test_models_are_listed_and_found(client, server):  # noqa: F811
    assert [m.id for m in client.models.list()] == [server.model]
    assert client.models.retrieve(server.model).id == server.model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no/such:model")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


def test_a_chat_and_its_stream_have_one_text(client, server):  # noqa: F811
    plain = client.chat.completions.create(model=server.model, messages=HELLO, temperature=0, max_tokens=24)
    text, usage, finish = "", None, None
    stream = client.chat.completions.create(model=server.model, messages=HELLO, temperature=0, max_tokens=24, stream=True,
                                            stream_options={"include_usage": True})
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    assert text == plain.choices[0].message.content
    assert finish == plain.choices[0].finish_reason
    assert usage.total_tokens == plain.usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_completions_plain_streamed_and_scored(client, server):  # noqa: F811
    ask = dict(model=server.model, prompt="The river ran low", temperature=0, max_tokens=16)
    plain = client.completions.create(**ask)
    streamed = "".join(c.text for chunk in client.completions.create(**ask, stream=True) for c in chunk.choices)
    assert streamed == plain.choices[0].text
    scored = client.completions.create(**{**ask, "max_tokens": 0}, echo=True, logprobs=1).choices[0]
    assert scored.text == "The river ran low" and scored.logprobs.token_logprobs[0] is None
    assert all(x <= 0 for x in scored.logprobs.token_logprobs[1:])


def test_log_probabilities_parse_into_the_packages_types(client, server):  # noqa: F811
    answer = client.chat.completions.create(model=server.model, messages=HELLO, temperature=0, max_tokens=5, logprobs=True, top_logprobs=2)
    for entry in answer.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 2 and entry.top_logprobs[0].logprob == entry.logprob


def test_errors_become_the_packages_exceptions(client, server):  # noqa: F811
    ask = dict(model=server.model, messages=HELLO)
    for fields, param in (({"temperature": 9}, "temperature"), ({"n": 0}, "n"), ({"tools": [{"type": "function"}]}, "tools")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**ask, **fields)
        assert caught.value.param.split("[")[0] == param
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=server.model, messages=[{"role": "user", "content": "word " * 20000}])
    assert caught.value.code == "context_length_exceeded"


def test_a_stream_that_is_left_early_frees_its_slot(client, server):  # noqa: F811
    for _ in range(12):
        with client.chat.completions.create(model=server.model, messages=HELLO, max_tokens=200, stream=True) as stream:
            next(iter(stream))
    assert client.completions.create(model=server.model, prompt="a", max_tokens=1).usage.completion_tokens == 1


def test_eight_asynchronous_streams_at_once(client, server):  # noqa: F811
    async def everything():
        async with openai.AsyncOpenAI(base_url=str(client.base_url), api_key="unused", max_retries=0) as many:
            async def one():
                stream = await many.chat.completions.create(model=server.model, messages=HELLO, temperature=0, max_tokens=24, stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
            return await asyncio.gather(*[one() for _ in range(8)])

    wanted = client.chat.completions.create(model=server.model, messages=HELLO, temperature=0, max_tokens=24).choices[0].message.content
    assert asyncio.run(everything()) == [wanted] * 8
