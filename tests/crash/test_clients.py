"""Clients that leave, and operations that meet: at the chosen system call of a save or a load somebody hangs up, commits, loads,
saves or stops the server."""
import hashlib
import json
import mmap
import os
import random
import signal
import socket
import struct
import time

import gate
import pytest
from crashlab import check_disk, judge_at, leftovers, places, record, servers, sha256, where  # noqa: F401

pytestmark = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")


def attached(servers, **env):
    server = servers(gated=True, **env)
    info = server.attach()
    fd = os.open(info["arena"]["path"], os.O_RDWR)
    server.arena = mmap.mmap(fd, info["arena"]["bytes"])
    os.close(fd)
    server.tensor = info["tensors"][0]
    return server


def save_place(server, call, file="model.safetensors"):
    """The place of a call of a save on a file, from a save into another run."""
    (status, _), calls = record(server, lambda: server.save(9, "probe"))
    assert status == 201
    return next(p for p in places(server.where, calls) if p.startswith(call) and p.split()[1].endswith(file))


def hold(server, place, operation):
    server.gate.arm(judge_at(server.where, place, gate.HOLD))
    running = server.in_background(operation)
    return running, server.gate.wait_held()


def commit(server):
    for route in ("quiesce", "commit-begin"):
        server.done("POST", f"/api/weights/{route}", {})
    at, n = server.tensor["offset"], server.tensor["nbytes"]
    for i in range(at, at + n, 2):
        server.arena[i] ^= 0x20
    for route in ("commit-end", "resume"):
        server.done("POST", f"/api/weights/{route}", {})


def request(server, method, path, body):
    """A connection whose request was sent and whose answer nobody has read."""
    host, port = server.address.split(":")
    link = socket.create_connection((host, int(port)))
    text = json.dumps(body).encode()
    head = "".join(f"{k}: {v}\r\n" for k, v in server.headers.items())
    link.sendall(f"{method} {path} HTTP/1.1\r\nHost: {server.address}\r\nContent-Length: {len(text)}\r\n{head}\r\n".encode()
                 + text)
    return link


def reset(link):
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def wait_for(what, seconds=30):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


@pytest.mark.parametrize("call", ["fallocate", "pwrite64", "fsync"])
def test_a_commit_during_a_save_loses_nothing_and_is_not_in_the_files(where, servers, call):
    server = attached(servers)
    place = save_place(server, call)
    at_snapshot = hashlib.sha256(server.arena).hexdigest()
    saving, held = hold(server, place, lambda: server.save(1))
    commit(server)  # does not wait for the disk
    after = hashlib.sha256(server.arena).hexdigest()
    server.gate.release(held)
    status, answer = saving.join()
    assert status == 201 and after != at_snapshot
    assert answer["data"]["weights_sha256"] == at_snapshot == sha256(where + "/checkpoints/run/step-000001/model.safetensors")
    assert hashlib.sha256(server.arena).hexdigest() == after
    assert server.status()["commits"] == 1


@pytest.mark.parametrize("call", ["pwrite64", "fsync"])
def test_a_load_during_a_save_does_not_show_in_the_files_and_keeps_its_name(where, servers, call):
    server = attached(servers)
    place = save_place(server, call)
    commit(server)
    at_snapshot = hashlib.sha256(server.arena).hexdigest()
    saving, held = hold(server, place, lambda: server.save(1))
    status, loaded = server.load(path="probe/step-000009")
    assert status == 200, loaded
    server.gate.release(held)
    status, answer = saving.join()
    assert status == 201 and answer["data"]["identity_set"] is False, answer
    assert sha256(where + "/checkpoints/run/step-000001/model.safetensors") == at_snapshot
    assert server.status()["model"]["name"] == loaded["data"]["name"]


def test_a_second_save_is_refused_while_one_is_written(where, servers):
    server = attached(servers)
    place = save_place(server, "fsync")
    saving, held = hold(server, place, lambda: server.save(1))
    status, answer = server.save(2)
    assert status == 409, answer
    server.gate.release(held)
    assert saving.join()[0] == 201
    assert server.save(2)[0] == 201
    assert check_disk(server.checkpoints)["run"] == ["step-000001", "step-000002"]


def test_serving_goes_on_while_a_save_waits_for_the_disk(where, servers):
    server = attached(servers)
    place = save_place(server, "fsync")
    before = server.ask()
    saving, held = hold(server, place, lambda: server.save(1))
    assert all(server.ask() == before for _ in range(5))
    server.gate.release(held)
    assert saving.join()[0] == 201


def test_a_save_whose_client_left_is_published_all_the_same(where, servers):
    server = attached(servers)
    place = save_place(server, "fsync")
    server.gate.arm(judge_at(where, place, gate.HOLD))
    link = request(server, "POST", "/api/weights/save", {"manifest": {
        "run_id": "run", "step": 1, "domain": "crash", "signal_source": "corpus", "parent": None,
        "optimizer": {"name": "none", "state": "fresh"}}})
    held = server.gate.wait_held()
    reset(link)
    server.gate.release(held)
    wait_for(lambda: os.path.islink(where + "/checkpoints/run/latest"))
    wait_for(lambda: server.status()["model"]["name"].endswith(":run:step-1"))
    check_disk(server.checkpoints, [("run", "step-000001")])
    assert server.save(2)[0] == 201


def test_a_load_whose_client_left_before_the_barrier_changes_nothing(where, servers):
    server = attached(servers)
    assert server.save(1)[0] == 201
    commit(server)
    before, name = hashlib.sha256(server.arena).hexdigest(), server.status()["model"]["name"]
    (_, _), calls = record(server, lambda: server.load(path="run/step-000001"))
    place = [p for p in places(where, calls) if p.startswith("pread64") and "model.safetensors" in p][-1]
    commit(server)
    before, name = hashlib.sha256(server.arena).hexdigest(), server.status()["model"]["name"]
    server.gate.arm(judge_at(where, place, gate.HOLD))
    link = request(server, "POST", "/api/weights/load", {"path": "run/step-000001"})
    held = server.gate.wait_held()
    reset(link)
    time.sleep(0.3)  # the server hears of it
    server.gate.release(held)
    wait_for(lambda: '"code":"CLIENT_CLOSED_REQUEST"' in server.log_text())
    assert '"outcome":"refused","http_status":499' in server.log_text() and "INTERNAL_ERROR" not in server.log_text()
    assert hashlib.sha256(server.arena).hexdigest() == before and server.status()["model"]["name"] == name
    assert server.status()["weights_state"] == "clean" and server.load(path="run/step-000001")[0] == 200


@pytest.mark.parametrize("call", ["pwrite64", "fsync", "renameat2"])
def test_a_stop_in_the_middle_of_a_save_ends_it_whole_or_leaves_nothing(where, servers, call):
    server = attached(servers)
    place = save_place(server, call, ".tmp-STEP" if call == "renameat2" else "model.safetensors")
    saving, held = hold(server, place, lambda: server.save(1))
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    server.gate.release(held)
    saving.join()
    assert server.process.wait(60) == 0, server.log_text()
    check_disk(server.checkpoints)
    assert leftovers(server.checkpoints) == []
    server.kill()
    again = servers()
    again.attach()
    assert again.save(1)[0] in (201, 409)


def test_fifty_streams_that_are_reset_leave_the_slots_and_a_save_finds_nobody_in_its_way(where, servers):
    server = servers()
    server.attach()
    before, files, bytes_before, rng = server.ask(), descriptors(server), resident_bytes(server), random.Random(29)
    name = server.status()["model"]["name"]
    for i in range(50):
        link = request(server, "POST", "/v1/completions", {"model": name, "prompt": "The river ran low", "max_tokens": 200,
                                                           "stream": True})
        if i % 3:
            link.settimeout(20)
            link.recv(1 + rng.randrange(2000))
        time.sleep(rng.random() * 0.01)
        reset(link)
    status, answer = server.save(1)
    assert status == 201, answer
    server.done("POST", "/api/weights/quiesce", {})  # it drains at once: nobody is left
    server.done("POST", "/api/weights/resume", {})
    assert server.ask() == before
    wait_for(lambda: descriptors(server) <= files + 1)
    assert resident_bytes(server) < bytes_before + (24 << 20)  # the memory of a save, and no stream's
