"""Files and shared memory that change under a load or a save, at the chosen call: what was verified is what is used, a change is
told, a file or a mapping that becomes shorter never ends the server."""
import http.client
import mmap
import os
import shutil
import time

import gate
import pytest
from crashlab import OPERATOR, Server, check_disk, judge_at, leftovers, places, record, servers, where  # noqa: F401

gated = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")
STEP = "/checkpoints/run/step-000001"


def saved_twice(servers, **env):
    """An attached server with run/step-000001 and, after a change of the weights, run/step-000002."""
    server = servers(gated=True, **env)
    info = server.attach()
    server.arena = Arena(info["arena"])
    status, answer = server.save(1)
    assert status == 201, answer
    commit(server, info)
    assert server.save(2, parent=answer["data"]["name"])[0] == 201
    return server


class Arena:
    def __init__(self, arena):
        self.path, self.size = arena["path"], arena["bytes"]
        self.fd = os.open(self.path, os.O_RDWR)
        self.map = mmap.mmap(self.fd, self.size)


def scribble(server, info):
    tensor = info["tensors"][0]
    for at in range(tensor["offset"], tensor["offset"] + tensor["nbytes"], 2):
        server.arena.map[at] ^= 0x40


def commit(server, info):
    for route in ("quiesce", "commit-begin"):
        server.done("POST", f"/api/weights/{route}", {})
    scribble(server, info)
    for route in ("commit-end", "resume"):
        server.done("POST", f"/api/weights/{route}", {})


def load_places(server):
    """The places of a load of step 1 by this server, then step 2 is back."""
    (status, _), calls = record(server, lambda: server.load(path="run/step-000001"))
    assert status == 200 and server.load(path="run/step-000002")[0] == 200
    return [p for p in places(server.where, calls) if "model.safetensors" in p]


def during(server, place, change, operation):
    """The answer of an operation that waits at `place` while `change` happens."""
    judge = judge_at(server.where, place, gate.HOLD)
    server.gate.arm(judge)
    answer = server.in_background(operation)
    call = server.gate.wait_held()
    change()
    server.gate.release(call)
    got = answer.join()
    server.gate.disarm()
    assert got, f"the server did not answer: {server.log_text()}"
    return got


def other_bytes(path):
    """A file of the same size with one other bit."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    data[-1] ^= 1
    with open(path + ".other", "wb") as f:
        f.write(data)
    return path + ".other"


def replace(path):
    os.replace(other_bytes(path), path)


def overwrite(path):
    with open(path, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last[0] ^ 1]))


def half(path):
    os.truncate(path, os.path.getsize(path) // 2)


def remove(path):
    os.remove(path)


@gated
@pytest.mark.parametrize("change, told", [(replace, "inode"), (overwrite, "mtime"), (half, "size"), (remove, "missing")])
def test_a_file_that_changes_between_hash_and_barrier_is_refused(where, servers, change, told):
    server = saved_twice(servers)
    before = server.ask()
    mapped = bytes(server.arena.map)
    wanted = load_places(server)
    last_read = max(i for i, p in enumerate(wanted) if p.startswith("pread64"))
    status, answer = during(server, wanted[last_read + 1], lambda: change(where + STEP + "/model.safetensors"),
                            lambda: server.load(path="run/step-000001"))
    assert status == 422 and answer["error"]["code"] == "CHECKPOINT_HASH_MISMATCH", answer
    details = answer["error"]["details"]
    # The open handle of a removed or replaced file has one link less: its change time differs first.
    assert details["reason"] == "file_changed" and details["changed"] in (told, "ctime"), details
    assert details["actual"] is None and len(details["expected"]) == 64
    assert server.status()["weights_state"] == "clean" and bytes(server.arena.map) == mapped and server.ask() == before
    assert server.load(path="run/step-000002")[0] == 200


@gated
@pytest.mark.parametrize("reader", range(3), ids=["length", "header", "data"])
def test_a_file_cut_while_it_is_read_is_an_error_and_no_signal(where, servers, reader):
    server = saved_twice(servers)
    before = server.ask()
    reads = [p for p in load_places(server) if p.startswith("pread64")]
    assert len(reads) == 3
    path = where + STEP + "/model.safetensors"
    status, answer = during(server, reads[reader], lambda: half(path), lambda: server.load(path="run/step-000001"))
    assert status == 422 and answer["error"]["code"] == "CHECKPOINT_HASH_MISMATCH", answer
    assert server.status()["weights_state"] == "clean" and server.ask() == before
    os.truncate(path, 0)
    assert server.load(path="run/step-000001")[0] in (400, 422)
    assert server.ask() == before


@gated
@pytest.mark.parametrize("change", [overwrite, half])
def test_without_prefetch_what_changes_inside_the_barrier_tears_and_the_next_load_mends(where, servers, change):
    server = saved_twice(servers, WEIGHTS_LOAD_PREFETCH="false")
    path = where + STEP + "/model.safetensors"
    shutil.copy(path, where + "/kept")
    reads = [p for p in load_places(server) if p.startswith("pread64")]
    status, answer = during(server, reads[-1], lambda: change(path), lambda: server.load(path="run/step-000001"))
    assert status == 500 and answer["error"]["code"] == "WEIGHTS_LOAD_FAILED", answer
    assert answer["error"]["details"]["weights_state"] == "torn"
    assert server.call("GET", "/v1/models")[0] == 503
    shutil.copy(where + "/kept", path)
    assert server.load(path="run/step-000001")[0] == 200
    assert server.status()["weights_state"] == "clean" and server.ask()


@gated
def test_a_model_directory_that_is_cut_during_its_load_is_an_error_of_the_row(where, servers):
    server = servers(gated=True, model="tiny-qwen3", below=["tiny-llama"])
    path = where + "/tiny-llama/model.safetensors"
    shutil.copytree(os.path.join(os.path.dirname(__file__), "../vectors/models/tiny-llama"), where + "/tiny-llama")
    row = server.done("POST", "/api/models", {"source": "local", "local_path": where + "/tiny-llama"}, 202)["id"]
    held = []

    def first_read_of_data(call):
        if held or call.path != path or call.name != "pread64" or call.args[2] < 100000:
            return gate.PASS
        held.append(call)
        return gate.HOLD

    server.gate.arm(first_read_of_data)
    server.done("POST", f"/api/models/{row}/load", {}, 202)
    call = server.gate.wait_held()
    half(path)
    server.gate.release(call)
    for _ in range(500):
        found = server.done("GET", f"/api/models/{row}")
        if found["status"] == "error":
            break
        time.sleep(0.02)
    server.gate.disarm()
    assert found["status"] == "error" and found["error_message"], found
    assert server.call("GET", "/api/health")[0] == 200


# ---- shared memory ----

@gated
@pytest.mark.parametrize("at", ["fallocate", "fsync"])
def test_a_client_that_cuts_its_memory_during_a_save_ends_neither_the_server_nor_a_lie(where, servers, at):
    server = saved_twice(servers, WEIGHTS_SHM_TRANSPORT="posix_shm")
    (_, calls) = record(server, lambda: server.save(3, "probe"))
    place = next(p for p in places(where, calls) if p.startswith(at) and "model.safetensors" in p)
    status, answer = during(server, place, lambda: os.truncate(server.arena.path, 0), lambda: server.save(4))
    steps = check_disk(server.checkpoints)["run"]
    assert leftovers(server.checkpoints) == []
    if at == "fsync":  # its bytes were read before
        assert status == 201 and "step-000004" in steps, answer
    else:
        assert status >= 400 and "step-000004" not in steps, answer
    server.call("POST", "/v1/completions", {"model": server.status()["model"]["name"], "prompt": "x", "max_tokens": 2})
    assert server.status()["weights_state"] == "torn"
    del server.headers["X-miLLM-Attachment"]
    assert server.load(path="run/step-000001")[0] == 409  # the attachment is still there
    assert server.call("GET", "/api/health")[0] == 200


@pytest.mark.parametrize("transport", ["memfd", "posix_shm"])
def test_a_client_that_writes_on_after_a_forced_detach_changes_nothing(where, servers, transport):
    server = servers(WEIGHTS_SHM_TRANSPORT=transport, WEIGHTS_HEARTBEAT_TIMEOUT_S="0.2")
    info = server.attach()
    server.arena = Arena(info["arena"])
    assert info["arena"]["transport"] == transport
    before = server.ask()
    del server.headers["X-miLLM-Attachment"]  # whoever sends it is alive
    deadline = time.monotonic() + 30
    while server.status()["attachment"]["state"] != "stale":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server.done("POST", "/api/weights/detach", {"force": True}, Authorization=f"Bearer {OPERATOR}")
    scribble(server, info)
    assert server.ask() == before
    if transport == "posix_shm":
        os.ftruncate(server.arena.fd, 0)
    assert server.ask() == before and server.status()["weights_state"] == "clean"
    again = server.attach()
    assert server.save(1)[0] == 201
    assert server.ask() == before and again["attachment_id"] != info["attachment_id"]


@pytest.mark.parametrize("then", ["detach", "commit", "load"])
def test_a_cut_mapping_is_found_by_whoever_touches_it_and_the_server_goes_on(where, servers, then):
    server = servers(WEIGHTS_SHM_TRANSPORT="posix_shm")
    info = server.attach()
    server.arena = Arena(info["arena"])
    assert server.save(1)[0] == 201
    os.ftruncate(server.arena.fd, 0)
    if then == "detach":
        assert server.done("POST", "/api/weights/detach", {})["weights_state"] == "torn"
    elif then == "load":
        status, answer = server.load(path="run/step-000001")
        assert status == 500 and answer["error"]["code"] == "WEIGHTS_LOAD_FAILED", answer
    else:
        for route in ("quiesce", "commit-begin", "commit-end", "resume"):
            server.call("POST", f"/api/weights/{route}", {})
    try:
        server.call("POST", "/v1/completions", {"model": server.status()["model"]["name"], "prompt": "x", "max_tokens": 2})
    except http.client.HTTPException as problem:
        raise AssertionError(server.log_text()) from problem
    assert server.status()["weights_state"] == "torn"
    server.call("POST", "/api/weights/detach", {})
    server.headers.pop("X-miLLM-Attachment")
    assert server.load(path="run/step-000001")[0] == 200
    assert server.status()["weights_state"] == "clean" and server.ask()


def test_shared_memory_of_a_killed_server_is_swept_and_that_of_a_living_one_is_not(where, servers, tmp_path):
    server = servers(WEIGHTS_SHM_TRANSPORT="posix_shm")
    path = server.attach()["arena"]["path"]
    other = Server(str(tmp_path), model=None)
    other.stop()
    assert os.path.exists(path), "the memory of a living server was taken away"
    server.kill()
    assert os.path.exists(path)
    other = Server(str(tmp_path), model=None)
    other.stop()
    assert not os.path.exists(path)
