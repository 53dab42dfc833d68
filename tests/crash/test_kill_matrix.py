"""SIGKILL at the system calls of a save and of a load: the calls come from a recorded one, the process dies before it makes
the call. CRASH_MATRIX=full takes every call (make crash-matrix), otherwise a sample."""
import http.client
import os

import gate
import pytest
from crashlab import (back_to_the_base, check_disk, judge_at, leftovers, places, reached, record, sample,  # noqa: F401
                      servers, sha256, steps, where)

pytestmark = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")


def quietly(function):
    try:
        return function()
    except (OSError, http.client.HTTPException):
        return None  # it was killed


@pytest.mark.parametrize("new_run", [True, False], ids=["first_of_a_run", "later"])
def test_a_save_killed_at_a_call_is_whole_or_absent_and_can_be_saved_again(where, servers, new_run):
    server = servers(gated=True)
    server.attach()
    assert server.save(0)[0] == 201
    run_of = (lambda step: f"run-{step}") if new_run else (lambda step: "run")
    (status, _), calls = record(server, lambda: server.save(1, run_of(1)))
    assert status == 201
    wanted = places(where, calls)
    assert len(wanted) > 40 and any("renameat2" in p for p in wanted) and any("fsync" in p for p in wanted)
    acknowledged = [("run", "step-000000"), (run_of(1), "step-000001")]
    for step, place in enumerate(sample(wanted, 7), start=2):
        run, name, before = run_of(step), f"step-{step:06d}", steps(f"{where}/checkpoints/{run_of(step)}")
        judge = judge_at(where, place, gate.KILL)
        server.gate.arm(judge)
        answer = quietly(lambda n=step, r=run: server.save(n, r))
        server.kill()
        assert reached(judge, place), f"the call was not made this time: {place}"
        if answer and answer[0] == 201:
            acknowledged.append((run, name))
        found = check_disk(server.checkpoints, acknowledged)
        assert set(found.get(run, [])) - set(before) <= {name}
        server = servers(gated=True)
        assert leftovers(server.checkpoints) == [], place
        server.attach()
        status, answer = server.save(step, run)
        assert status == (409 if name in found.get(run, []) else 201), (place, answer)
        found = check_disk(server.checkpoints, [*acknowledged, (run, name)])
        if status == 201 or new_run:
            assert check_latest(server, run) == name, place
        acknowledged.append((run, name))


def check_latest(server, run):
    status, answer = server.load(path=f"{run}/latest")
    assert status == 200, answer
    return "step-%06d" % int(answer["data"]["name"].rpartition("-")[2])


def tree(directory):
    """{path: sha256} of all files below."""
    return {os.path.join(d, f): sha256(os.path.join(d, f)) for d, _, files in os.walk(directory) for f in files}


@pytest.mark.parametrize("resident, mode", [("tiny-llama", "in_place"), ("tiny-qwen3", "full_reload")])
def test_a_load_killed_at_a_call_changes_no_file_and_works_at_the_next_start(where, servers, resident, mode):
    first = servers()
    first.attach()
    assert first.save(1)[0] == 201
    saved = first.ask()
    first.stop()
    server = servers(gated=True, model=resident)
    base = next(r["id"] for r in server.rows() if r["status"] == "loaded")
    load = lambda: server.load(path="run/step-000001")  # noqa: E731
    (status, answer), calls = record(server, load)
    assert status == 200 and answer["data"]["mode"] == mode, answer
    back_to_the_base(server, base)
    files = tree(where + "/checkpoints")
    wanted = places(where, calls)
    assert any("model.safetensors" in p for p in wanted)
    assert (mode == "full_reload") == any("cairn.db" in p and "write" in p for p in wanted)
    for place in sample(wanted, 7):
        judge = judge_at(where, place, gate.KILL)
        server.gate.arm(judge)
        quietly(load)
        server.kill()
        assert reached(judge, place), f"the call was not made this time: {place}"
        assert tree(where + "/checkpoints") == files, place
        server = servers(gated=True, model=resident)
        assert all(row["status"] in ("ready", "loaded") for row in server.rows()), place
        status, answer = load()
        assert status == 200, (place, answer)
        assert server.ask() == saved, place
        back_to_the_base(server, base)
