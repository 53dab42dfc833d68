"""What every route shares: ids, CORS, Host and Origin, unknown routes, envelopes, body rules."""
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import check_error, wait_until


def test_a_well_formed_request_id_comes_back_and_others_are_replaced(server):
    for value in ("abc.DEF_1-2", "x" * 128):
        assert server.get("/v1/models", headers={"X-Request-ID": value}).header("X-Request-ID") == value
    for value in ("a b", "x" * 129, "ä"):
        got = server.get("/v1/models", headers={"X-Request-ID": value.encode()}).header("X-Request-ID")
        assert re.fullmatch(r"req_[0-9a-f]{24}", got)
    assert len({server.get("/v1/models").header("X-Request-ID") for _ in range(20)}) == 20


@pytest.mark.parametrize("method, path", [("POST", "/v1/nope"), ("GET", "/v2/models"), ("POST", "/api/nope"), ("GET", "/x"),
                                          ("GET", "/v1/models/"), ("GET", "/api//models")])
def test_an_unknown_route_is_a_bare_404(server, method, path):
    answer = server.call(method, path, b"{}" if method == "POST" else None)
    assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize("method, path, allow", [("GET", "/v1/chat/completions", "POST"), ("DELETE", "/v1/models", "GET"),
                                                 ("PUT", "/v1/completions", "POST"), ("PATCH", "/api/models", "GET, POST")])
def test_a_wrong_method_is_a_bare_405_with_allow(server, method, path, allow):
    answer = server.call(method, path)
    assert (answer.status, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert sorted(answer.header("Allow").split(", ")) == sorted(allow.split(", "))


def test_head_answers_like_get_without_a_body(server):
    answer = server.call("HEAD", "/v1/models")
    assert (answer.status, answer.body) == (200, b"") and int(answer.header("Content-Length")) > 0


def test_a_body_must_be_declared_as_json(server):
    body = b'{"model": "x", "prompt": "a"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
        check_error(server.post("/v1/completions", body, headers={"Content-Type": kind}), 400, "invalid_parameter")
        assert server.post("/api/models", body, headers={"Content-Type": kind}).status == 422
    good = server.post("/v1/completions", body, headers={"Content-Type": "application/json; charset=utf-8"})
    check_error(good, 404, "model_not_found")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"NaN", b'{"model": "\xff"}', b'{"a": 1, "a": 2}', b'{"a": NaN}',
                                  b'\xef\xbb\xbf{}', b"{} {}", b'{"a":' * 70 + b"1" + b"}" * 70], ids=range(11))
def test_malformed_json_is_refused_on_both_faces(server, body):
    check_error(server.post("/v1/completions", body), 400, "invalid_parameter")
    answer = server.post("/api/models", body)
    assert answer.status == 422
    got = answer.json()
    assert got["success"] is False and got["data"] is None and got["error"]["code"] == "VALIDATION_ERROR"
    assert got["error"]["details"]["errors"][0].keys() == {"path", "message", "type"}


def test_json_of_millions_of_objects_is_refused_before_it_takes_memory(server):
    for piece in (b"{}", b"[]", b'{"a":[]}'):
        body = b'{"model": "x", "prompt": [' + b",".join([piece] * 2**20) + b"]}"
        assert "lists and objects" in check_error(server.post("/v1/completions", body), 400, "invalid_parameter")["message"]
    body = b'{"model": "x", "prompt": [' + b",".join([b"[1]"] * 1000) + b"]}"
    check_error(server.post("/v1/completions", body), 404, "model_not_found")


def test_large_bodies_leave_no_memory_behind(make_server):
    server = make_server(model=None)
    pid = server.process.pid
    if re.search("lib[at]san", Path(f"/proc/{pid}/maps").read_text()):
        pytest.skip("a sanitizer keeps what is freed")
    body = b'{"model": "x", "prompt": [' + b",".join([b"1"] * 7_500_000) + b"]}"
    with ThreadPoolExecutor(6) as pool:
        for answer in pool.map(lambda _: server.post("/v1/completions", body), range(6)):
            check_error(answer, 404, "model_not_found")
    resident = lambda: int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) // 1024
    wait_until(lambda: resident() < 200, lambda: f"{resident()} MB")  # one keeps 250 MB, six 1.5 GB
    server.stop()


def test_an_envelope_has_its_three_keys_and_both_sentences(server):
    good = server.get("/api/models").json()
    assert sorted(good) == ["data", "error", "success"] and good["error"] is None and good["success"] is True
    bad = server.get("/api/models/999999")
    error = bad.json()["error"]
    assert bad.status == 404 and error["code"] == "MODEL_NOT_FOUND"
    assert error["details"]["user_message"] == error["message"] and "technical_message" in error["details"]


@pytest.mark.parametrize("name", ["0", "-1", "abc", "1.5", "01", "9" * 19, "%31"])
def test_an_id_that_is_no_number_is_a_422(server, name):
    answer = server.get(f"/api/models/{name}")
    assert answer.status == 422 and answer.json()["error"]["code"] == "VALIDATION_ERROR"


def test_cors_names_the_origin_and_our_headers(make_server):
    server = make_server({"CORS_ORIGINS": "http://app.example"}, model=None)
    origin = {"Origin": "http://app.example"}
    answer = server.get("/v1/models", headers=origin)
    assert answer.header("Access-Control-Allow-Origin") == "http://app.example"
    exposed = answer.header("Access-Control-Expose-Headers")
    for name in ("X-miLLM-Model", "X-miLLM-Ignored-Fields", "X-miLLM-Adapter", "X-Request-ID", "Retry-After"):
        assert name in exposed
    ask = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    answer = server.call("OPTIONS", "/v1/chat/completions", headers=ask)
    assert answer.status == 204 and "POST" in answer.header("Access-Control-Allow-Methods")
    assert answer.header("Access-Control-Allow-Headers") == "authorization,content-type"
    assert answer.header("Access-Control-Max-Age") == "600"
    assert server.get("/v1/models", headers={"Origin": "http://evil.example"}).status == 403
    server.stop()


def test_only_local_or_listed_hosts_are_answered(server):
    for host in ("localhost", "127.0.0.1:1", "[::1]:80", "server.example", "a.localhost"):
        assert server.get("/v1/models", headers={"Host": host}).status == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", ""):
        assert server.get("/v1/models", headers={"Host": host}).status in (400, 403), host


def test_a_file_beside_the_models_is_never_reached_through_an_address(server):
    for path in ("/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/%2e%2e/%2e%2e/etc/passwd", "/v1/models/a%00b"):
        check_error(server.get(path), 404, "model_not_found", "model")


def test_a_name_of_any_bytes_is_not_found_rather_than_a_fault(server):
    for name in ("tiny%ffllama", "%c3", "%ed%a0%80", "a" + "%e2%82%ac" * 300):
        check_error(server.get(f"/v1/models/{name}"), 404, "model_not_found", "model")
    long = "a" + "\u20ac" * 3000  # cut in the middle of a character, wherever a message cuts it
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/embeddings", {"input": "a"})):
        check_error(server.post(path, {"model": long, **body}), 404, "model_not_found", "model")
    check_error(server.post("/v1/completions", {"model": server.model, "prompt": "a", long: 1, "stop": 5}), 400)
