"""The JSON bodies of cases/bodies.tsv that concern /v1 (S25, S27, S28)."""
import json
import re

import pytest
from conftest import CASES, check_error

ROWS = [line.split("\t") for line in (CASES / "bodies.tsv").read_text().splitlines()[1:]]
ROWS = [row for row in ROWS if row[1].startswith("/v1/")]


def words(server, name, right, body):
    """What a row says beside its status."""
    choices = body["choices"]
    if "4 choices" in right:
        assert [c["index"] for c in choices] == [0, 1, 2, 3]
    if "same text as temperature 0" in right:
        assert choices[0]["text"] == server.complete("a", max_tokens=4, temperature=0).json()["choices"][0]["text"]
    if "first one null" in right:
        values = choices[0]["logprobs"]["token_logprobs"]
        assert values[0] is None and all(isinstance(v, float) for v in values[1:])
        assert body["usage"]["completion_tokens"] == 0
    if "chosen tokens" in right:
        assert len(choices[0]["logprobs"]["token_logprobs"]) == body["usage"]["completion_tokens"]
    if 'content "ab"' in right:
        assert body["usage"]["prompt_tokens"] == server.chat("ab", max_tokens=1).json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("row", ROWS, ids=[r[0][7:-5] for r in ROWS])
def test_a_body_gets_its_right_answer(server, row):
    name, path, right = row[:3]
    data = (CASES / name).read_bytes().replace(b'"model":"M"', b'"model":' + json.dumps(server.model).encode())
    got = server.post(path, data)
    allowed = {int(s) for s in re.findall(r"\b[2-5]\d\d\b", right.split(":")[0])}
    if "cut at the context" in right or "documented" in right or "replacement character" in right:
        allowed.add(200)
    assert got.status in allowed, got
    if got.status == 200:
        words(server, name, right, got.json())
    else:
        param = re.search(r"naming (\S+)", right) or re.search(r"param (\w+)", right)
        code = re.search(r"404 (\w+)", right)
        check_error(got, got.status, code and code[1], param and param[1])
    assert server.complete("a", max_tokens=1).status == 200
