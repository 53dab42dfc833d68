"""The real `openai` package: files and batches."""
import json
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from conftest import make_server, server  # noqa: E402,F401  (fixtures)

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(server):  # noqa: F811
    return openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="unused", max_retries=0, timeout=120)


def test_a_file_goes_in_and_comes_out(client, tmp_path):
    path = tmp_path / 'häns "x".jsonl'
    path.write_bytes(b'{"a": 1}\n' * 1000)
    made = client.files.create(file=path, purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200})
    assert (made.bytes, made.purpose, made.filename, made.expires_at - made.created_at) == (9000, "batch", path.name, 7200)
    assert client.files.content(made.id).content == path.read_bytes()
    assert made.id in [f.id for f in client.files.list(limit=1)]  # the package follows the pages
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.content(made.id)
    assert caught.value.code == "file_deleted"


def test_a_batch_runs_to_its_results(client, server):  # noqa: F811
    bodies = [{"model": server.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0} for text in ("one", "two")]
    bodies.append({**bodies[0], "max_tokens": -1})
    lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": b} for i, b in enumerate(bodies)]
    made = client.files.create(file=("in.jsonl", b"".join(json.dumps(x).encode() + b"\n" for x in lines)), purpose="batch")
    batch = client.batches.create(input_file_id=made.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"k": "v"})
    until = time.monotonic() + 60
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < until
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed, batch.metadata) == ("completed", 2, 1, {"k": "v"})
    assert batch.errors.data[0].line == 3
    good = [json.loads(x) for x in client.files.content(batch.output_file_id).text.splitlines()]
    for x, body in zip(good, bodies):
        assert x["response"]["body"]["choices"][0]["message"] == client.chat.completions.create(**body).choices[0].message.to_dict()
    assert json.loads(client.files.content(batch.error_file_id).text)["custom_id"] == "r2"
    assert client.batches.list(limit=1).data[0].id == batch.id
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
