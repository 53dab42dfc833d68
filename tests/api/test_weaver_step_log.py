"""The step log of a run after a server that ended in the middle of a line."""
import json
import signal

import pytest
from conftest import MODELS
from weaver_http import ENV, Run, Weaver


@pytest.mark.parametrize("half", [b'{"op":"half', b'{"op":"' + b"x" * 20000, b""], ids=["short", "long", "none"])
def test_a_half_line_is_cut_off_before_the_log_goes_on(make_server, tmp_path, half):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 1, "seed": 3})
    run.train(1)
    path = run.save()["path"]
    log = tmp_path / "steps" / f"{run.id}.jsonl"
    whole = log.read_bytes()
    server.stop(signal.SIGKILL)
    log.write_bytes(whole + half)
    server.start()
    w.server = server
    run.load(path)
    assert log.read_bytes().startswith(whole)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line.get("type", line.get("status")) for line in lines[-2:]] == ["load_checkpoint", "done"]


def test_a_log_whose_first_line_is_half_begins_anew(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 1, "seed": 3})
    path = run.save()["path"]
    server.stop(signal.SIGKILL)
    log = tmp_path / "steps" / f"{run.id}.jsonl"
    log.write_bytes(log.read_bytes()[:30])
    server.start()
    w.server = server
    run.load(path)
    assert json.loads(log.read_text().splitlines()[0])["model_id"] == run.id
