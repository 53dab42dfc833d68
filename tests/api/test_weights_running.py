"""Refusals that need something which runs: requests that a load or an adapter waits for, and a model that is being loaded
(rows 17 of a save; 12, 14 and 24 of a load; MODEL_BUSY and PAUSE_IN_PROGRESS of the trainer's steps)."""
import contextlib
import functools
import json
import socket
import struct
import threading

import pytest
from conftest import MODELS, OPERATOR, TRAINER, wait_until
from foreign import Foreign
from pairs import every
from test_adapters import copy_adapter
from test_load_pairs import CONDITIONS as LOAD, LoadCase
from test_save_pairs import CONDITIONS as ALL_OF_SAVE, make_case
from trainer import Trainer, ask, audit_lines, granted, load, refused, status

MANY = ["The river ran low and the mill stood still"] * 128  # a minute of work; its client hangs up when it is not needed


@contextlib.contextmanager
def busy(server):
    """A request that runs until the block ends, on the model that is resident now."""
    body = json.dumps({"model": status(server)["model"]["name"], "prompt": MANY, "max_tokens": 400,
                       "logit_bias": {"2": -100}}).encode()
    link = server.connect()
    try:
        link.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: in_flight(server) > 0)
        yield
        assert in_flight(server) > 0, "it ended too early"
    finally:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.close()


def in_flight(server):
    return server.get("/api/health/detailed").json()["inference"]["in_flight"]


class In(threading.Thread):
    """A call on a thread of its own."""

    def __init__(self, call):
        super().__init__()
        self.call, self.value = call, None
        self.start()

    def run(self):
        self.value = self.call()

    def result(self):
        self.join(120)
        return self.value


@pytest.fixture
def slow(make_server, tmp_path):
    """Servers on the reference kernels, with a read root and an adapter."""
    made = []

    def make(**env):
        (tmp_path / "read").mkdir(exist_ok=True)
        copy_adapter(tmp_path / "adapters", "lora")
        server = make_server({"CAIRN_KERNELS": "ref", "ADAPTER_DIR": str(tmp_path / "adapters"), "CAIRN_MAX_IMAGES": "2",
                              "WEIGHTS_CHECKPOINT_READ_ROOTS": str(tmp_path / "read"), **env})
        server.read_root = tmp_path / "read"
        server.probe = Foreign(server.checkpoints)
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()


def held_by(server, attachment, owner):
    """Waits until `owner` has the barrier; a plan changes nothing."""
    plan = lambda: server.weights("plan/load", {"path": f"{server.probe.run}/step-000001"}, attachment)
    wait_until(lambda: (plan().json()["error"] or {"details": {}})["details"].get("held_by") == owner)


def adapter(server, route, **body):
    return server.post(f"/api/adapters/{route}", body, headers={"Authorization": f"Bearer {OPERATOR}"})


@pytest.mark.parametrize("end", ["detaches", "hangs up"])
def test_a_quiesce_that_nobody_waits_for_lets_serving_go_on(slow, end):
    server = slow(WEIGHTS_DRAIN_TIMEOUT_S="3000")
    trainer = Trainer(server)
    link = server.connect()
    with busy(server), link:
        link.sendall(f"POST /api/weights/quiesce HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TRAINER}\r\n"
                     f"X-miLLM-Attachment: {trainer.id}\r\nContent-Length: 0\r\n\r\n".encode())
        held_by(server, trainer.id, "quiesce")
        if end == "detaches":
            trainer.detach()
            assert b'"code":"NOT_ATTACHED"' in link.recv(65536)
        else:
            link.close()
        ask(server)  # held until then
        assert status(server)["serving"] == "serving" and in_flight(server) > 0


@pytest.mark.parametrize("route", ["load", "adapter"])
def test_what_waits_for_running_requests_gives_up_with_its_client(slow, route):
    server = slow(WEIGHTS_DRAIN_TIMEOUT_S="3000")
    trainer = Trainer(server)
    body = json.dumps({"path": server.probe.path} if route == "load" else {"name": "lora"})
    path = "/api/weights/load" if route == "load" else "/api/adapters/apply"
    link = server.connect()
    with busy(server):
        link.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TRAINER}\r\n"
                     f"X-miLLM-Attachment: {trainer.id}\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        held_by(server, trainer.id, route)
        link.close()
        before = trainer.digest()
        ask(server)
        assert trainer.digest() == before and in_flight(server) > 0
    now = status(server)
    assert (now["weights_state"], now["model"]["name"], now["model"]["adapter"]) == ("clean", "tiny-llama", None)
    wait_until(lambda: audit_lines(server)[-1]["code"] == "CLIENT_CLOSED_REQUEST")


SAVE = [c for c in ALL_OF_SAVE if c.name != "name too long"]  # the name of this model is short
save_case = functools.partial(make_case, attach=False)


def test_while_a_load_waits_for_running_requests_the_barrier_is_its_own(slow):
    server = slow()
    holder = Trainer(server)
    with busy(server):
        loading = In(lambda: load(server, holder.id, path=server.probe.path))
        held_by(server, holder.id, "load")
        every(SAVE, save_case, server, "save", 17, "PAUSE_IN_PROGRESS", holder.id, held_by="load")
        every(LOAD, LoadCase, server, "load", 14, "PAUSE_IN_PROGRESS", holder.id, held_by="load")
        refused(holder.call("quiesce"), 409, "PAUSE_IN_PROGRESS", held_by="load")
        refused(adapter(server, "apply", name="lora"), 409, "PAUSE_IN_PROGRESS", held_by="load")
        assert loading.is_alive()
    assert granted(loading.result())["mode"] == "in_place"
    assert ask(server)[1].startswith(f'"{server.probe.name}"')
    holder.detach()


def test_while_an_adapter_waits_for_running_requests_the_barrier_is_its_own(slow):
    server = slow()
    holder = Trainer(server)
    with busy(server):
        applying = In(lambda: adapter(server, "apply", name="lora"))
        held_by(server, holder.id, "adapter")
        every(SAVE, save_case, server, "save", 17, "PAUSE_IN_PROGRESS", holder.id, held_by="adapter")
        every(LOAD, LoadCase, server, "load", 14, "PAUSE_IN_PROGRESS", holder.id, held_by="adapter")
        refused(holder.call("quiesce"), 409, "PAUSE_IN_PROGRESS", held_by="adapter")
        refused(adapter(server, "remove"), 409, "PAUSE_IN_PROGRESS", held_by="adapter")
    assert granted(applying.result())["name"] == "lora"
    holder.detach()


def test_a_drain_that_takes_too_long_is_given_up_and_nothing_is_changed(slow):
    server = slow(WEIGHTS_DRAIN_TIMEOUT_S="0.2")
    holder = Trainer(server)
    before, digest = status(server), holder.digest()
    with busy(server):
        for call in (lambda: load(server, holder.id, path=server.probe.path), lambda: holder.call("quiesce"),
                     lambda: adapter(server, "apply", name="lora")):
            details = refused(call(), 409, "MODEL_BUSY", reason="drain_timeout", timeout_s=0.2)
            assert details["in_flight"] > 0
        granted(holder.save("busy", 1), 201)  # a save waits for nobody
    after = status(server)
    assert (after["weights_state"], after["serving"], after["steps_since_load"], holder.digest()) == \
        ("clean", "serving", before["steps_since_load"], digest)
    holder.detach()


def test_while_a_model_is_loaded_nobody_else_loads_attaches_or_leases(slow):
    """At most two images: the second load waits for who reads the first."""
    server = slow(GRACEFUL_UNLOAD_TIMEOUT="60")
    second, third = (server.register(MODELS / name)["id"] for name in ("tiny-qwen2", "tiny-qwen3"))
    with busy(server):
        server.load(second)
        granted(server.post(f"/api/models/{third}/load"), 202)
        every(LOAD, LoadCase, server, "load", 12, "MODEL_BUSY", None, reason="load_in_progress")
        lease = {"holder": "h", "reason": "r"}
        for call in (lambda: server.weights("attach"), lambda: server.post(f"/api/models/{server.row}/load"),
                     lambda: server.post(f"/api/models/{second}/unload"),
                     lambda: server.post(f"/api/models/{second}/lease", lease),
                     lambda: server.call("DELETE", f"/api/models/{third}")):
            refused(call(), 409, "MODEL_BUSY")
        refused(server.weights("load", {"model_id": server.row}), 409, "MODEL_BUSY", reason="load_in_progress")
        answer = server.post("/v1/completions", {"model": "tiny-llama", "prompt": "x", "max_tokens": 1})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "model_busy")
        answer = server.post("/v1/completions", {"model": "tiny-qwen3", "prompt": "x", "max_tokens": 1},
                             headers={"X-miLLM-Load-Policy": "refuse"})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "model_loading")
    wait_until(lambda: granted(server.get(f"/api/models/{third}"))["status"] == "loaded")
    assert status(server)["model"]["name"] == "tiny-qwen3"


def test_while_a_model_is_unloaded_nobody_loads(slow):
    """Its requests end on their own; the answer to the unload waits for them."""
    server = slow(GRACEFUL_UNLOAD_TIMEOUT="60")
    with busy(server):
        unloading = In(lambda: server.post(f"/api/models/{server.row}/unload"))
        wait_until(lambda: status(server)["model"] is None)
        refused(server.weights("attach"), 400, "MODEL_NOT_LOADED")  # which stands before MODEL_BUSY
        refused(server.post(f"/api/models/{server.row}/load"), 409, "MODEL_BUSY", reason="unload_in_progress",
                unloading_model_id=server.row)
        every(LOAD, LoadCase, server, "load", 12, "MODEL_BUSY", None, reason="unload_in_progress")
        answer = server.post("/v1/completions", {"model": "tiny-llama", "prompt": "x", "max_tokens": 1})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "model_busy")
        assert int(answer.header("Retry-After")) == 5
        assert unloading.is_alive()
    assert granted(unloading.result())["status"] == "ready" and status(server)["model"] is None


def test_a_stream_that_began_before_a_load_ends_on_its_own_weights(slow):
    """And one that begins after it is answered by the new ones, at once."""
    server = slow()
    body = {"prompt": "The river ran low", "max_tokens": 400, "temperature": 0, "logit_bias": {"2": -100}}
    texts = lambda chunks: "".join(c["choices"][0]["text"] for c in chunks if c["choices"])
    before = texts(server.stream("/v1/completions", body)[1])
    holder = Trainer(server)
    holder.commit(0x0040)
    saved = granted(holder.save("other", 1), 201)
    holder.detach()
    after = texts(server.stream("/v1/completions", {**body, "model": saved["name"]})[1])
    granted(load(server, model_id=server.row))
    started = In(lambda: server.stream("/v1/completions", body))
    wait_until(lambda: in_flight(server) > 0)
    granted(load(server, name=saved["name"]))
    assert started.is_alive(), "it ended before the load"
    new, new_chunks = server.stream("/v1/completions", {**body, "model": saved["name"]})
    old, old_chunks = started.result()
    assert old.header("X-miLLM-Model") == '"tiny-llama";origin=model;commits=0' and texts(old_chunks) == before
    assert new.header("X-miLLM-Model").startswith(f'"{saved["name"]}"') and texts(new_chunks) == after != before
