"""A stop while something is written: a save is finished when there is time for it, and cut at a second signal or when
CAIRN_STOP_S is over; then it says so, and leaves nothing."""
import os
import signal
import time
from pathlib import Path

import gate
import pytest
from crashlab import Background, check_disk, judge_at, leftovers, model_copy, places, record, servers, steps, where  # noqa: F401
from test_training_errors import Client, Face
from weaver_http import KEY, Weaver

pytestmark = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")


def wait_log(server, text):
    until = time.monotonic() + 60
    while text not in server.log_text():
        assert time.monotonic() < until, server.log_text()
        time.sleep(0.02)


def held_at(server, wanted, function):
    """(the call that is held, the function under way): at the first write into a file of that name."""
    _, calls = record(server, function)
    place = next(p for p in places(server.where, calls) if p.startswith("pwrite") and wanted in p)
    server.gate.arm(judge_at(server.where, place, gate.HOLD))
    work = Background(function)
    return server.gate.wait_held(), work


def stop_and_cut(server, how):
    server.process.send_signal(signal.SIGTERM)
    wait_log(server, "stopping")
    if how == "signal":
        server.process.send_signal(signal.SIGTERM)
    wait_log(server, f"why={how}")


PATIENCE = {"signal": "600", "time": "0.5"}


@pytest.mark.parametrize("how", PATIENCE)
def test_a_save_is_cut_and_says_so_and_leaves_nothing(where, servers, how):  # noqa: F811
    server = servers(gated=True, CAIRN_STOP_S=PATIENCE[how])
    server.attach()
    step = iter(range(1, 9))
    call, work = held_at(server, "model.safetensors", lambda: server.save(next(step)))
    stop_and_cut(server, how)
    server.gate.release(call)
    status, answer = work.join()
    assert (status, answer["error"]["code"]) == (500, "CHECKPOINT_WRITE_FAILED"), answer
    assert "being stopped" in answer["error"]["message"] and answer["error"]["details"]["published"] is False
    assert server.process.wait(60) == 0
    assert steps(server.checkpoints + "/run") == ["step-000001"] and leftovers(server.checkpoints) == []


def test_a_save_that_has_time_is_finished(where, servers):  # noqa: F811
    server = servers(gated=True, CAIRN_STOP_S="600")
    server.attach()
    step = iter(range(1, 9))
    call, work = held_at(server, "model.safetensors", lambda: server.save(next(step)))
    server.process.send_signal(signal.SIGTERM)
    wait_log(server, "stopping")
    server.gate.release(call)
    assert work.join()[0] == 201
    assert server.process.wait(60) == 0, server.log_text()
    assert "stop_cut" not in server.log_text()
    assert check_disk(server.checkpoints)["run"] == ["step-000001", "step-000002"] and leftovers(server.checkpoints) == []


@pytest.mark.parametrize("how", PATIENCE)
def test_a_training_checkpoint_is_cut_and_its_operation_is_as_after_a_restart(where, servers, how):  # noqa: F811
    env = {"WEAVER_API_KEYS": f"team:{KEY}"}
    server = servers(gated=True, model=None, CAIRN_STOP_S=PATIENCE[how], **env)
    assert server.call("POST", "/api/models", {"source": "local", "local_path": model_copy(where, "tiny-llama")})[0] == 202
    client, home = Client(server), Path(where, "state/weaver")
    names = iter("abcdefgh")
    before = sorted(os.listdir(home / client.run.id))
    call, work = held_at(server, "adapter_model.safetensors", lambda: client.ask(
        "POST", client.run.path + "/checkpoints", {"type": "weight_and_optimizer", "name": next(names)}))
    stop_and_cut(server, how)
    server.gate.release(call)
    made = work.join()
    assert server.process.wait(60) == 0
    assert len(os.listdir(home / client.run.id)) == len(before) + 1 and leftovers(str(home)) == []  # the recorded one
    again = Weaver(Face(servers(model=None, **env)))
    envelope = again.get(f"/operations/{made['id']}")
    assert (envelope["status"], envelope["error"], envelope["retryable"]) == ("error", "server_restarted", True), envelope
    assert len(again.get(client.run.path + "/checkpoints")["items"]) == len(before) + 1
