"""Queue, held requests, clients that leave, and what /v1 says while weights are held or torn (3.5, 3.7, 7.8, S29)."""
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import check_error, wait_until


@pytest.fixture(scope="module")
def narrow(make_server):
    """One slot, three places to wait, a hold longer than any test."""
    server = make_server({"MAX_CONCURRENT_REQUESTS": "1", "MAX_PENDING_REQUESTS": "3", "WEIGHTS_HOLD_REQUEST_TIMEOUT_S": "500",
                          "WEIGHTS_QUIESCE_MAX_HOLD_S": "600", "WEIGHTS_COMMIT_WATCHDOG_S": "60"})
    yield server
    server.stop()


class Trainer:
    def __init__(self, server):
        self.server = server

    def __enter__(self):
        answer = self.server.weights("attach")
        assert answer.status == 201, answer
        self.id = answer.json()["data"]["attachment_id"]
        return self

    def __call__(self, route, status=200):
        answer = self.server.weights(route, attachment=self.id)
        assert answer.status == status, answer
        return answer

    def __exit__(self, *_):
        self.server.weights("detach", attachment=self.id)


def inference(server):
    return server.get("/api/health/detailed").json()["inference"]


def wait_for(server, key, value):
    wait_until(lambda: inference(server)[key] == value)


def test_a_full_queue_says_when_to_come_back(narrow):
    with Trainer(narrow) as trainer, ThreadPoolExecutor(8) as pool:
        trainer("quiesce")
        waiting = [pool.submit(narrow.complete, "a", max_tokens=1) for _ in range(3)]
        wait_for(narrow, "queue_pending", 3)
        error = check_error(narrow.complete("a", max_tokens=1), 503, "queue_full")
        assert error["type"] == "server_error"
        answer = narrow.chat("a", max_tokens=1, stream=True)
        check_error(answer, 503, "queue_full")
        assert 1 <= int(answer.header("Retry-After")) <= 60
        trainer("resume")
        assert [w.result().status for w in waiting] == [200, 200, 200]


def test_a_request_that_is_held_too_long_is_let_go(make_server):
    server = make_server({"WEIGHTS_HOLD_REQUEST_TIMEOUT_S": "0.5", "WEIGHTS_QUIESCE_MAX_HOLD_S": "600"})
    with Trainer(server) as trainer:
        trainer("quiesce")
        answer = server.complete("a", max_tokens=1)
        check_error(answer, 503, "model_busy")
        assert answer.header("Retry-After") == "5"
        trainer("resume")
    assert server.complete("a", max_tokens=1).status == 200
    server.stop()


def test_a_client_that_leaves_while_it_waits_frees_its_place(narrow):
    body = f'{{"model": "{narrow.model}", "prompt": "a", "max_tokens": 1}}'.encode()
    request = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
               + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    with Trainer(narrow) as trainer:
        trainer("quiesce")
        for how in ("reset", "close"):
            sock = narrow.connect()
            sock.sendall(request)
            wait_for(narrow, "queue_pending", 1)
            if how == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            wait_for(narrow, "queue_pending", 0)
        trainer("resume")


def test_hundreds_of_held_requests_leave_room_to_let_them_go(make_server):
    server = make_server({"MAX_PENDING_REQUESTS": "300", "WEIGHTS_QUIESCE_MAX_HOLD_S": "600", "WEIGHTS_HOLD_REQUEST_TIMEOUT_S": "500"})
    with Trainer(server) as trainer, ThreadPoolExecutor(260) as pool:
        trainer("quiesce")
        waiting = [pool.submit(server.complete, "a", max_tokens=1) for _ in range(260)]
        wait_for(server, "queue_pending", 260)
        trainer("resume")
        assert {w.result().status for w in waiting} == {200}
    server.stop()


def test_requests_beyond_the_slots_wait_for_their_turn(narrow):
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: narrow.complete("The river", temperature=0, max_tokens=20).json()["choices"][0]["text"], range(4)))
    assert len(set(texts)) == 1


def test_answers_count_commits_and_a_stream_keeps_the_name_it_began_with(make_server):
    server = make_server({"WEIGHTS_QUIESCE_MAX_HOLD_S": "60"})
    with Trainer(server) as trainer:
        for n in (1, 2):
            for route in ("quiesce", "commit-begin", "commit-end", "resume"):
                trainer(route)
            answer, chunks = server.stream("/v1/completions", {"prompt": "a", "max_tokens": 2})
            assert answer.header("X-miLLM-Model") == f'"{server.model}";origin=model;commits={n}' == chunks[-1]["millm_model"]
    server.stop()


def test_torn_weights_are_told_on_every_route(make_server):
    server = make_server({"WEIGHTS_COMMIT_WATCHDOG_S": "0.3"})
    with Trainer(server) as trainer:
        trainer("quiesce")
        held = threading.Thread(target=lambda: results.append(server.complete("a", max_tokens=1)))
        results = []
        held.start()
        wait_for(server, "queue_pending", 1)
        trainer("commit-begin")
        held.join(60)
        check_error(results[0], 503, "weights_torn")
        for answer in (server.get("/v1/models"), server.get(f"/v1/models/{server.model}"), server.complete("a"), server.chat("a"),
                       server.chat("a", stream=True), server.post("/v1/completions", {"model": 7})):
            error = check_error(answer, 503, "weights_torn")
            assert error["type"] == "server_error" and error["param"] is None
            assert answer.header("Retry-After") == "30"
        check_error(server.post("/v1/completions", b"{"), 400, "invalid_parameter")
    server.stop()


def test_greedy_text_is_the_same_alone_and_beside_others(server):
    alone = server.complete(temperature=0, max_tokens=48).json()["choices"][0]["text"]
    seeded = server.complete(temperature=1.5, seed=11, max_tokens=24).json()["choices"][0]["text"]
    with ThreadPoolExecutor(8) as pool:
        noise = [pool.submit(server.complete, f"noise {i} " * (1 + i % 7), temperature=1, max_tokens=5 + i % 23) for i in range(40)]
        texts = list(pool.map(lambda _: server.complete(temperature=0, max_tokens=48).json()["choices"][0]["text"], range(8)))
        hot = list(pool.map(lambda _: server.complete(temperature=1.5, seed=11, max_tokens=24).json()["choices"][0]["text"], range(8)))
        assert all(n.result().status == 200 for n in noise)
    assert set(texts) == {alone} and set(hot) == {seeded}


def test_a_server_that_stops_ends_its_streams_and_leaves_nothing(make_server):
    server = make_server()
    with server.connect() as sock:
        body = f'{{"model": "{server.model}", "prompt": "a", "max_tokens": 400, "stream": true}}'.encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        assert server.stop() == 0
