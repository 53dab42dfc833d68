"""A call of a save or of a load fails (EIO, ENOSPC): the answer names the stage, nothing half-made stays, what is served does
not change, and the next try works. The calls come from a recorded save and load."""
import errno
import os
import resource

import gate
import pytest
from crashlab import back_to_the_base, check_disk, judge_at, leftovers, places, reached, record, sample, servers, steps, where  # noqa: F401

pytestmark = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")

WEIGHTS, MANIFEST = "STEP/model.safetensors", "STEP/manifest.json"
# A close that does not happen keeps the descriptor, an unlock that does not happen keeps the lock: no kernel does that.
NEVER_FAIL = {"close", "fcntl"}


def call_of(place):
    return place.split()[0].rstrip("+")


def path_of(place):
    return place.split()[1]


def in_stages(wanted):
    """{place: stage} for the calls that a save may not lose. The stage follows from what the documented order of a save
    (docs/formats/store.md) does to which file; a call that only reads, advises or closes may be survived."""
    stages, renamed, moved = {}, False, False
    for place in wanted:
        call, path = call_of(place), path_of(place)
        made = place.split()[0].endswith("+")
        if call.startswith("rename"):
            stages[place] = "latest" if "latest" in path else "rename"
            renamed, moved = True, moved or "latest" in path
        elif call == "symlinkat":
            stages[place], moved = "latest", True
        elif call == "fsync":
            stages[place] = "sync" if not renamed else "latest" if moved else "sync_parent"
        elif call == "mkdirat":
            stages[place] = "prepare"
        elif call in ("fallocate", "pwrite64", "ftruncate") or made:
            stages[place] = "weights" if path.endswith(WEIGHTS) else "manifest" if path.endswith(MANIFEST) else "companions"
    return stages


def entries(server):
    return sorted(os.path.join(d, n) for d, dirs, files in os.walk(server.checkpoints) for n in dirs + files)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_a_save_whose_call_fails_says_its_stage_and_leaves_old_or_new(where, servers, code):
    server = servers(gated=True)
    server.attach()
    assert server.save(0)[0] == 201
    (status, _), calls = record(server, lambda: server.save(1, "run-1"))
    assert status == 201
    stages = in_stages(places(where, calls))
    assert set(stages.values()) == {"prepare", "weights", "companions", "manifest", "sync", "rename", "sync_parent", "latest"}
    answer = server.ask()
    for step, (place, stage) in enumerate(stages.items(), start=2):
        run, before = f"run-{step}", entries(server)
        judge = judge_at(where, place, code)
        server.gate.arm(judge)
        status, refused = server.save(step, run)
        server.gate.disarm()
        assert judge.met and status == 500, (place, refused)
        error = refused["error"]
        published = stage in ("sync_parent", "latest")
        told = {k: error["details"][k] for k in ("stage", "errno", "published")}
        assert error["code"] == "CHECKPOINT_WRITE_FAILED", (place, error)
        assert told == {"stage": stage, "errno": code, "published": published}, (place, told)
        if not published:
            assert entries(server) == before, place
        assert check_disk(server.checkpoints).get(run, []) == ([f"step-{step:06d}"] if published else [])
        assert leftovers(server.checkpoints) == [], place
        assert server.status()["weights_state"] == "clean"
        status, again = server.save(step, run)
        assert status == (409 if published else 201), (place, again)
    assert server.ask() == answer


def test_calls_that_a_save_can_do_without_may_fail(where, servers):
    """Reads, advice and closing: the save succeeds, or fails and leaves nothing; it never claims what it did not do."""
    server = servers(gated=True)
    server.attach()
    (status, _), calls = record(server, lambda: server.save(1, "run-1"))
    assert status == 201
    wanted = places(where, calls)
    stages = in_stages(wanted)
    rest = [p for p in wanted if p not in stages and call_of(p) not in NEVER_FAIL]
    assert rest
    for step, place in enumerate(rest, start=2):
        run = f"run-{step}"
        judge = judge_at(where, place, errno.EIO)
        server.gate.arm(judge)
        status, answer = server.save(step, run)
        server.gate.disarm()
        assert reached(judge, place), place
        assert status == 201 or answer["error"]["code"] in ("CHECKPOINT_WRITE_FAILED", "INTERNAL_ERROR"), (place, answer)
        assert leftovers(server.checkpoints) == [] and check_disk(server.checkpoints).get(run, []) == \
            ([f"step-{step:06d}"] if status == 201 else []), (place, answer)
        assert server.save(step, run)[0] == (409 if status == 201 else 201), place


@pytest.mark.parametrize("call, code", [("fallocate", errno.EOPNOTSUPP), ("pwrite64", errno.EINVAL)])
def test_a_file_system_without_reservation_or_direct_writes_is_good_enough(where, servers, call, code):
    server = servers(gated=True)
    server.attach()
    (_, _), calls = record(server, lambda: server.save(1, "run-1"))
    place = next(p for p in places(where, calls) if call_of(p) == call and p.split()[1].endswith(WEIGHTS))
    judge = judge_at(where, place, code)
    server.gate.arm(judge)
    status, answer = server.save(2, "run-2")
    server.gate.disarm()
    assert judge.met and status == 201, answer
    check_disk(server.checkpoints, [("run-2", "step-000002")])


def test_a_failed_sync_is_not_tried_again(where, servers):
    server = servers(gated=True)
    server.attach()
    (_, _), calls = record(server, lambda: server.save(1, "run-1"))
    place = next(p for p in places(where, calls) if call_of(p) == "fsync" and p.split()[1].endswith(WEIGHTS))
    server.gate.arm(judge_at(where, place, errno.EIO))
    status, _ = server.save(2, "run-2")
    syncs = [c for c in server.gate.disarm() if c.name in gate.SYNCS]
    assert status == 500 and len(syncs) == 1


@pytest.mark.parametrize("resident, mode", [("tiny-llama", "in_place"), ("tiny-qwen3", "full_reload")])
def test_a_load_whose_call_fails_changes_nothing_and_the_next_one_works(where, servers, resident, mode):
    first = servers()
    first.attach()
    assert first.save(1)[0] == 201
    first.stop()
    server = servers(gated=True, model=resident)
    base = next(r["id"] for r in server.rows() if r["status"] == "loaded")
    load = lambda: server.load(path="run/step-000001")  # noqa: E731
    before, rows = server.ask(), catalogue(server)
    (status, answer), calls = record(server, load)
    assert status == 200 and answer["data"]["mode"] == mode, answer
    after = server.ask()
    wanted = [p for p in places(where, calls) if call_of(p) not in NEVER_FAIL]
    failed = 0
    back_to_the_base(server, base)
    for place in sample(wanted, 3):
        judge = judge_at(where, place, errno.EIO)
        server.gate.arm(judge)
        status, answer = load()
        server.gate.disarm()
        assert reached(judge, place), place
        assert server.status()["weights_state"] == "clean", (place, answer)
        if status != 200:
            failed += 1
            assert status >= 400 and answer["error"]["code"], (place, answer)
            assert server.ask() == before, (place, answer)
            assert catalogue(server) == rows, (place, answer)
        else:
            assert server.ask() == after, place
        assert load()[0] == 200, place
        back_to_the_base(server, base)
    assert failed >= 3


def catalogue(server):
    return [(r["id"], r["name"], r["status"], r["checkpoint"]) for r in server.rows()]


def test_a_file_size_limit_fails_the_save_and_not_the_server(where, servers):
    server = servers()
    server.attach()
    answer = server.ask()
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (200000, resource.RLIM_INFINITY))
    status, refused = server.save(1)
    assert status == 500 and refused["error"]["details"]["errno"] == errno.EFBIG, refused
    assert refused["error"]["details"]["stage"] == "weights" and steps(where + "/checkpoints/run") == []
    assert leftovers(server.checkpoints) == [] and server.ask() == answer
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert server.save(1)[0] == 201
