"""Checkpoints that were damaged or made to mislead, on a running server: flipped bits, files that are no files, links, hard
links. Each is refused with its reason, at once, and what is served stays."""
import os
import random
import shutil
import time

import pytest
from crashlab import TOKEN, servers, where  # noqa: F401

RUN = "/checkpoints/run"


@pytest.fixture
def server(servers):
    """Not attached, tiny-qwen3 resident: a load of run/step-000001, of tiny-llama, is a full reload."""
    first = servers()
    first.attach()
    assert first.save(1)[0] == 201
    first.stop()
    return servers(model="tiny-qwen3")


def refused(server, reason=None, status=400, code="CHECKPOINT_NOT_LOADABLE", step=1, path=None):
    """The load is refused like this, quickly; the weights are the ones before."""
    name, began = server.status()["model"]["name"], time.monotonic()
    got, answer = server.load(path=path or f"run/step-{step:06d}")
    assert time.monotonic() - began < 20, "a load waited for something"
    assert got == status and answer["error"]["code"] == code, answer
    if reason:
        assert answer["error"]["details"].get("reason") == reason, answer
    state = server.status()
    assert state["weights_state"] == "clean" and state["model"]["name"] == name
    return answer["error"]["details"]


def test_a_flipped_bit_is_refused_in_place_and_as_a_full_reload(where, servers, server):
    path, rng = where + RUN + "/step-000001/model.safetensors", random.Random(64)
    size = os.path.getsize(path)
    before = server.ask()
    for at in [0, 7, 8, 100, size - 1] + [rng.randrange(size) for _ in range(20)]:
        flip(path, at, 1 << rng.randrange(8))
        details = refused(server, status=422, code="CHECKPOINT_HASH_MISMATCH")
        assert details["expected"] != details["actual"]
        flip(path, at, None)
    assert server.ask() == before
    assert server.load(path="run/step-000001")[0] == 200
    flip(path, size // 2, 1)  # now a load of it is in place
    refused(server, status=422, code="CHECKPOINT_HASH_MISMATCH")


flipped = {}


def flip(path, at, mask):
    """mask None: back again."""
    flipped[at] = mask = mask or flipped.pop(at)
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ mask]))


def put_fifo(path):
    os.remove(path)
    os.mkfifo(path)


def put_directory(path):
    os.remove(path)
    os.mkdir(path)


def put_link(path):
    os.rename(path, path + ".kept")
    os.symlink(os.path.basename(path) + ".kept", path)


@pytest.mark.parametrize("put", [put_fifo, put_directory, put_link])
def test_weights_and_manifest_must_be_files(where, server, put):
    step = where + RUN + "/step-000001"
    shutil.copytree(step, where + "/kept")
    put(step + "/model.safetensors")
    assert refused(server, "safetensors_header")["problem"] == "not_regular"
    shutil.rmtree(step)
    shutil.copytree(where + "/kept", step)
    put(step + "/manifest.json")
    refused(server, code="INVALID_MANIFEST")
    shutil.rmtree(step)
    shutil.copytree(where + "/kept", step)
    assert server.load(path="run/step-000001")[0] == 200


@pytest.mark.parametrize("name, reason", [("config.json", "incomplete"), ("tokenizer.json", "incomplete"),
                                          ("extra", "unsafe_file")])
def test_a_fifo_among_the_companions_never_blocks(where, server, name, reason):
    path = f"{where}{RUN}/step-000001/{name}"
    if os.path.exists(path):
        os.remove(path)
    os.mkfifo(path)
    refused(server, reason)


def test_links_inside_the_root_are_followed_and_links_out_of_it_are_not(where, server):
    run, outside = where + RUN, where + "/outside"
    shutil.copytree(run + "/step-000001", outside + "/step-000001")
    os.symlink(outside, where + "/checkpoints/out")
    refused(server, "outside_roots", code="INVALID_CHECKPOINT_PATH", path="out/step-000001")
    os.symlink(outside + "/step-000001", run + "/step-000002")
    refused(server, "outside_roots", code="INVALID_CHECKPOINT_PATH", step=2)
    os.symlink(os.path.abspath(run), where + "/checkpoints/absolute")  # leads out, although it leads back in
    refused(server, "outside_roots", code="INVALID_CHECKPOINT_PATH", path="absolute/step-000001")
    config = run + "/step-000001/config.json"
    os.rename(config, where + "/config.json")
    os.symlink(where + "/config.json", config)
    refused(server)
    os.remove(config)
    os.makedirs(where + "/checkpoints/shared-files")
    os.rename(where + "/config.json", where + "/checkpoints/shared-files/config.json")
    os.symlink("../../shared-files/config.json", config)
    os.symlink("run", where + "/checkpoints/inside")
    assert server.load(path="run/step-000001")[0] == 200
    assert server.load(path="run/latest")[0] == 200


def test_a_hard_link_is_a_file_and_its_hash_pins_it(where, server):
    """A second name of the same bytes is fine; bytes that change through that name are noticed."""
    step, copy = where + RUN + "/step-000001", where + "/elsewhere"
    os.link(step + "/model.safetensors", copy)
    assert server.load(path="run/step-000001")[0] == 200
    with open(copy, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        f.write(b"\\x55")
    refused(server, status=422, code="CHECKPOINT_HASH_MISMATCH")


def test_a_save_into_a_run_that_leads_out_is_refused_and_writes_nothing_there(where, servers):
    server = servers()
    server.attach()
    os.mkdir(where + "/outside")
    os.symlink(where + "/outside", where + "/checkpoints/out")
    status, answer = server.save(1, run="out")
    assert status >= 400, answer
    assert os.listdir(where + "/outside") == []
    assert server.save(1)[0] == 201


def test_a_save_never_writes_through_a_hard_link_or_over_an_entry(where, servers):
    server = servers()
    server.attach()
    os.makedirs(where + RUN + "/step-000001")
    status, answer = server.save(1)
    assert status == 409 and answer["error"]["code"] == "CHECKPOINT_EXISTS", answer
    assert os.listdir(where + RUN + "/step-000001") == []
    assert TOKEN not in open(where + "/log").read()


def test_what_the_clean_up_of_a_start_cannot_remove_is_told_with_its_cause(where, servers):
    deep = "/".join(["d"] * 80)
    os.makedirs(f"{where}/checkpoints/run/.tmp-step-000001-x/{deep}")
    server = servers()
    line = next(x for x in server.log_text().splitlines() if "checkpoint_sweep" in x)
    assert "failed=1" in line and 'cause="d is left: too deep"' in line, line
