"""Raw bytes on the socket: the requests of cases/http.tsv, slow and rude clients (S28, S29)."""
import json
import re
import resource
import socket
import struct
import time

import pytest
from conftest import CASES, TRAINER, wait_until

ROWS = [line.split("\t") for line in (CASES / "http.tsv").read_text().splitlines()[1:]]


def read_all(sock, seconds=10):
    """(bytes, closed): what comes until the server closes or says nothing for a while."""
    got = b""
    sock.settimeout(seconds)
    try:
        while piece := sock.recv(65536):
            got += piece
    except socket.timeout:
        return got, False
    except ConnectionError:
        pass
    return got, True


def statuses(got):
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d\d\d)", got)]


def for_model(data, model):
    """The request for "M" as one for the served model: lengths are counted again."""
    more = len(model) - 1
    data = data.replace(b'"M"', b'"' + model.encode() + b'"')
    data = data.replace(b"\r\n25\r\n", f"\r\n{0x25 + more:x}\r\n".encode())
    return data.replace(b"Content-Length: 42", f"Content-Length: {42 + more}".encode())


@pytest.mark.parametrize("row", ROWS, ids=[r[0][5:-4] for r in ROWS])
def test_a_raw_request_gets_its_right_answer(server, row):
    name, right, _ = row
    data = (CASES / name).read_bytes()
    if name in ("http/chunk_ok_with_extension.bin", "http/bare_lf.bin"):
        data = for_model(data, server.model)
    with server.connect() as sock:
        try:
            sock.sendall(data)
        except OSError:
            pass  # it may answer and close before it has read everything
        got, closed = read_all(sock, 2)
    allowed = {int(s) for s in re.findall(r"\b[2-5]\d\d\b", right)} | ({200} if "same answer" in right else set())
    seen = statuses(got)
    assert seen and seen[0] in (allowed or {200}), got[:400]
    if "two answers in order" in right:
        assert seen == [200, 200]
    else:
        assert len(seen) == 1
    if "connection closed" in right:
        assert closed
    assert server.get("/v1/models").status == 200


CHUNKED = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
UNREADABLE = {  # (request, status, what the answer's path may know)
    "no version": (b"GET /v1/models\r\n\r\n", 400, None),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, None),
    "long address": (b"GET /v1/" + b"a" * 70000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, None),
    "long header": (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70000 + b"\r\n\r\n", 431, "v1"),
    "many parameters": (b"GET /v1/models?" + b"a&" * 12000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431, "v1"),
    "many cookies": (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"a=b;" * 7000 + b"\r\n\r\n", 431, "v1"),
    "no colon": (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400, "v1"),
    "length of letters": (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ten\r\n\r\n{}", 400, "v1"),
    "chunk of 17 digits": (b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + b"1" * 17 + b"\r\n{}\r\n0\r\n\r\n", 400, "v1"),
    "chunk of letters": (b"POST /api/models HTTP/1.1\r\n" + CHUNKED + b"zz\r\n", 400, "api"),
    "chunk, training": (b"POST /api/v1/create_session HTTP/1.1\r\n" + CHUNKED + b"zz\r\n", 400, "weaver"),
    "long chunk line": (b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + b"2;" + b"x" * 70000 + b"\r\n{}\r\n", 400, "v1"),
    "long trailer": (b"POST /v1/completions HTTP/1.1\r\n" + CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"x" * 70000 + b"\r\n\r\n", 431, "v1"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_refused_in_the_form_of_the_face(server, name):
    data, status, face = UNREADABLE[name]
    with server.connect() as sock:
        try:
            sock.sendall(data)
        except OSError:
            pass
        got, closed = read_all(sock)
    head, _, body = got.partition(b"\r\n\r\n")
    assert closed and statuses(got) == [status], got[:300]
    assert b"\r\nContent-Type: application/json" in head and b"\r\nContent-Length: %d\r\n" % len(body) in head
    error = json.loads(body)
    if face == "v1":
        assert error["error"].keys() == {"message", "type", "param", "code"}
        assert error["error"]["type"] == "invalid_request_error" and error["error"]["code"] == "invalid_parameter"
    elif face == "weaver":
        assert error["error"] == "invalid_request" and error["retryable"] is False
    else:
        assert error.keys() == {"detail"}
    assert server.get("/v1/models").status == 200


def test_a_large_body_is_refused_before_it_is_sent(server):
    with server.connect() as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 67108864\r\n\r\n{")
        got, closed = read_all(sock)
    assert statuses(got) == [413] and closed
    assert b'"payload_too_large"' in got


def test_a_large_body_that_is_sent_anyway_still_gets_its_answer(server):
    body = b'{"padding": "' + b"x" * (20 << 20) + b'"}'
    with server.connect() as sock:
        sock.sendall(b"POST /api/models HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     + f"Content-Length: {len(body)}\r\n\r\n".encode())
        try:
            sock.sendall(body)
        except OSError:
            pass
        got, _ = read_all(sock)
    assert statuses(got) == [413]
    assert b'"PAYLOAD_TOO_LARGE"' in got and b'"measured_bytes":20971' in got


PROTECTED = ["weights/" + r for r in ("save", "load", "promote", "plan/save", "plan/load", "attach", "detach", "heartbeat",
                                      "quiesce", "resume", "commit-begin", "commit-end")] + ["adapters/apply", "adapters/remove"]


@pytest.mark.parametrize("route", PROTECTED)
def test_a_token_is_judged_before_the_size_of_the_body(server, route):
    for token, status, code in (("", 401, "UNAUTHORIZED"), ("Bearer no-such-token-0123", 401, "UNAUTHORIZED"),
                                (f"Bearer {TRAINER}", 413, "PAYLOAD_TOO_LARGE")):
        with server.connect() as sock:
            head = f"Authorization: {token}\r\n" if token else ""
            sock.sendall(f"POST /api/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}"
                         f"Content-Length: 67108864\r\n\r\n{{".encode())
            got, closed = read_all(sock)
        assert statuses(got) == [status] and closed
        answer = json.loads(got.split(b"\r\n\r\n", 1)[1])
        assert answer["error"]["code"] == code
        assert got.count(b'WWW-Authenticate: Bearer realm="weights"\r\n') == (status == 401)
        if route == "weights/heartbeat":
            continue
        last = [json.loads(l) for l in server.log_text().splitlines() if '"weights_audit"' in l][-1]
        assert (last["http_status"], last["code"]) == (status, code)
        assert (last["role"] is None) == (status == 401)


def test_a_refused_token_is_challenged_once(server):
    with server.connect() as sock:
        sock.sendall(b"POST /api/weights/load HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        got, _ = read_all(sock)
    assert statuses(got) == [401] and got.count(b"WWW-Authenticate") == 1


def test_one_byte_a_second_blocks_nobody(server):
    socks = [server.connect() for _ in range(40)]
    try:
        for i in range(4):
            for sock in socks[:20]:
                sock.send(b"POST /v1/completions HTTP/1.1\r\n"[i:i + 1])
            started = time.monotonic()
            assert server.complete(max_tokens=1).status == 200
            assert time.monotonic() - started < 10
    finally:
        for sock in socks:
            sock.close()


@pytest.fixture
def many_descriptors():
    """A login has 1,024 of them unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"no process may have more than {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_connections_disturb_nobody(server, many_descriptors):
    socks = [server.connect() for _ in range(1000)]
    try:
        assert server.complete(max_tokens=2).status == 200
    finally:
        for sock in socks:
            sock.close()


def stream_request(server, tokens):
    body = (f'{{"model": "{server.model}", "stream": true, "max_tokens": {tokens}, "temperature": 1,'
            '"messages": [{"role": "user", "content": "The river ran low"}]}').encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)


def wait_idle(server):
    def idle():
        block = server.get("/api/health/detailed").json()["inference"]
        return not block["in_flight"] and not block["queue_waiting"]
    wait_until(idle)


def test_fifty_streams_that_are_reset_leave_every_slot_free(server):
    data = stream_request(server, 200)
    for i in range(50):
        sock = server.connect()
        sock.sendall(data)
        if i % 3 == 1:
            sock.recv(100)
        if i % 3 == 2:
            time.sleep(0.003 * (i % 7))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    wait_idle(server)
    assert server.complete(max_tokens=1).status == 200


def test_a_client_that_only_closes_its_sending_side_gets_its_answer(server):
    with server.connect() as sock:
        sock.sendall(stream_request(server, 8))
        sock.shutdown(socket.SHUT_WR)
        got, closed = read_all(sock)
    assert closed and statuses(got) == [200] and b"data: [DONE]\n\n" in got


def test_a_client_that_reads_slowly_gets_its_whole_stream(server):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.connect((server.host, server.port))
    with sock:
        sock.sendall(stream_request(server, 100))
        time.sleep(0.5)
        assert server.complete(max_tokens=2).status == 200
        got = b""
        while b"[DONE]" not in got:
            piece = sock.recv(256)
            assert piece, got[-100:]
            got += piece


def test_expect_100_is_answered_before_the_body(server):
    body = f'{{"model": "{server.model}", "prompt": "a", "max_tokens": 1}}'.encode()
    with server.connect() as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nExpect: 100-continue\r\n" + f"Content-Length: {len(body)}\r\n\r\n".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        got, _ = read_all(sock)
    assert statuses(got) == [200]
