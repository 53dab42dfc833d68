"""Attach, commit, detach over HTTP, with the shared weights mapped by this process."""
import grp
import os
import signal
import subprocess
import sys
import threading

import pytest
from conftest import OPERATOR, ROOT, TRAINER, wait_until
from trainer import Trainer, ask, audit_lines, granted, refused, status

HOLDER_ROUTES = ["detach", "heartbeat", "quiesce", "resume", "commit-begin", "commit-end", "save"]


@pytest.fixture(scope="module")
def own(make_server):
    """A server of this module: weights are changed here."""
    return make_server()


@pytest.fixture
def trainer(own):
    made = Trainer(own, pid=os.getpid())
    yield made
    if status(own)["attached"]:
        own.weights("resume", {}, made.id)
        made.detach()


def test_the_mapped_arena_is_the_file_and_a_commit_is_seen(own, trainer):
    info = trainer.info
    assert info["arena"]["transport"] == "memfd" and info["arena"]["mode"] == "0600"
    assert info["weights_state"] == "clean" and info["origin"] == "model"
    names = [t["name"] for t in info["tensors"] if t["shared_with"] is None]
    assert names == sorted(names) and all(t["dtype"] == "BF16" for t in info["tensors"])
    assert all(t["offset"] % 64 == 0 for t in info["tensors"])
    before, header = ask(own)
    assert header.endswith(";origin=model;commits=0")
    end = trainer.commit(0x0008)
    assert (end["commits"], end["steps_since_load"], end["overran"]) == (1, 1, False)
    after, header = ask(own)
    assert after != before and header.endswith("commits=1")
    trainer.commit(0x0008)
    again, header = ask(own)
    assert again == before and header.endswith("commits=2")


def test_a_sealed_arena_cannot_be_cut(trainer):
    with pytest.raises(OSError):
        os.truncate(trainer.info["arena"]["path"], 0)


def test_a_request_is_held_while_quiesced_and_answers_from_the_new_weights(own, trainer):
    before, _ = ask(own)
    trainer.do("quiesce")
    got = []
    waiting = threading.Thread(target=lambda: got.append(ask(own)))
    waiting.start()
    wait_until(lambda: status(own)["requests_held"] == 1)
    trainer.do("commit-begin")
    trainer.write(0x0008)
    trainer.do("commit-end")
    assert not got and status(own)["serving"] == "quiesced"
    assert trainer.do("resume")["requests_released"] == 1
    waiting.join(20)
    assert got[0][0] != before
    trainer.commit(0x0008)


@pytest.mark.parametrize("route", HOLDER_ROUTES)
def test_a_holder_route_needs_the_token_then_a_body_then_the_attachment(own, trainer, route):
    body = {"manifest": {}} if route == "save" else {}
    for token in ("x" * 20, ""):
        answer = own.weights(route, body, trainer.id, token)
        refused(answer, 401, "UNAUTHORIZED")
        assert answer.header("WWW-Authenticate") == 'Bearer realm="weights"'
    refused(own.weights(route, {"extra": 1}, trainer.id), 422, "VALIDATION_ERROR")
    for wrong in (None, "att_" + "A" * 43, "nonsense", trainer.id.swapcase()):
        refused(own.weights(route, body, wrong), 409, "NOT_ATTACHMENT_HOLDER", attached_identity="forge")


def test_one_attachment_at_a_time_and_the_catalogue_keeps_away(own, trainer):
    refused(own.weights("attach"), 409, "ALREADY_ATTACHED", stale=False, identity="forge")
    refused(own.post(f"/api/models/{own.row}/unload"), 409, "ALREADY_ATTACHED")
    refused(own.weights("detach", {"force": True}, token=OPERATOR), 409, "ATTACHMENT_NOT_STALE")
    refused(own.weights("detach", {"force": True}), 403, "FORBIDDEN", role="trainer", allowed_roles=["operator"])


def test_the_old_id_is_worthless_after_detach(own):
    first = Trainer(own)
    first.detach()
    refused(first.call("heartbeat"), 409, "NOT_ATTACHED")
    second = Trainer(own)
    refused(first.call("heartbeat"), 409, "NOT_ATTACHMENT_HOLDER")
    assert second.do("heartbeat")["attachment"] == "live"
    second.detach()


def test_posix_memory_maps_by_name_and_a_cut_arena_tears(make_server):
    server = make_server({"WEIGHTS_SHM_TRANSPORT": "posix_shm"})
    trainer = Trainer(server)
    arena = trainer.info["arena"]
    assert arena["transport"] == "posix_shm" and arena["path"] == "/dev/shm" + arena["shm_name"]
    assert os.stat(arena["path"]).st_mode & 0o777 == 0o600
    os.truncate(arena["path"], 0)
    server.post("/v1/completions", {"model": server.model, "prompt": "x", "max_tokens": 2})
    wait_until(lambda: status(server)["weights_state"] == "torn")
    assert server.get("/api/health").status == 200
    assert server.stop() == 0
    assert not os.path.exists(arena["path"])


CLIENT = """
import sys, time
sys.path[:0] = [{here!r}]
from conftest import Server
from trainer import Trainer
server = Server.__new__(Server)
server.host, server.port = {host!r}, {port}
import os
trainer = Trainer(server, pid=os.getpid())
trainer.do("quiesce"); trainer.do("commit-begin"); trainer.write(0x0100)
print("open", flush=True)
time.sleep(60)
"""


def test_a_client_killed_inside_a_commit_leaves_torn_weights_and_every_v1_route_says_so(make_server):
    server = make_server({"WEIGHTS_COMMIT_WATCHDOG_S": "0.5"})
    code = CLIENT.format(here=os.path.dirname(__file__), host=server.host, port=server.port)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "open\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    wait_until(lambda: status(server)["weights_state"] == "torn")
    state = status(server)
    assert state["attachment"]["state"] == "stale" and state["serving"] == "refused"
    embedding = server.post("/v1/embeddings", {"model": server.model, "input": "a"})
    for answer in (server.complete(), server.chat(), embedding, server.get("/v1/models")):
        assert answer.status == 503 and answer.json()["error"]["code"] == "weights_torn", answer
        assert int(answer.header("Retry-After")) >= 1
    granted(server.weights("detach", {"force": True}, token=OPERATOR))
    assert status(server)["weights_state"] == "torn"
    assert server.get("/api/health/ready").status == 503
    granted(server.weights("load", {"model_id": server.row}))
    assert server.complete(max_tokens=2).status == 200
    events = {line["operation"]: (line["state_before"], line["state_after"]) for line in audit_lines(server)}
    assert events["weights_torn"] == ("writing", "torn") and "weights_attachment_stale" in events


def test_shared_memory_without_room_is_named_with_what_is_free_there(make_server, tmp_path):
    program = tmp_path / "cairn"
    real = os.environ.get("CAIRN", str(ROOT / "build/cairn"))
    program.write_text("#!/bin/sh\nexec unshare -m sh -c 'mount -t tmpfs -o size=100k tmpfs /dev/shm && exec \"$0\" \"$@\"' "
                       f"{real} \"$@\"\n")
    program.chmod(0o755)
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True).returncode:
        pytest.skip("no mounts here")
    server = make_server({"CAIRN": str(program), "WEIGHTS_SHM_TRANSPORT": "posix_shm"})
    details = refused(server.weights("attach"), 507, "INSUFFICIENT_MEMORY")
    assert details["available_bytes"] <= 100 << 10 < details["required_bytes"]
    assert "shared memory" in details["user_message"]
    assert status(server)["attached"] is False and server.complete().status == 200
    server.stop()


def test_no_tokens_means_no_weights_routes_and_no_open_server(make_server):
    server = make_server({"WEIGHTS_TOKENS": ""})
    refused(server.weights("attach"), 403, "WEIGHTS_DISABLED")
    assert server.get("/api/weights/status").status == 200
    assert server.complete(max_tokens=1).status == 200


def test_an_arena_belongs_to_the_group_that_is_configured(make_server):
    group = grp.getgrgid(max(os.getgroups() or [os.getgid()])) if os.getuid() else grp.getgrnam("daemon")
    server = make_server({"WEIGHTS_SHM_GROUP": group.gr_name, "WEIGHTS_SHM_MODE": "0660"})
    trainer = Trainer(server)
    seen = os.stat(trainer.info["arena"]["path"])
    assert seen.st_gid == group.gr_gid and seen.st_mode & 0o777 == 0o660
    trainer.detach()
    server.stop()


def test_audit_lines_have_no_secrets(own):
    trainer = Trainer(own)
    trainer.detach()
    text = own.log_text()
    assert trainer.id not in text and TRAINER not in text and OPERATOR not in text
