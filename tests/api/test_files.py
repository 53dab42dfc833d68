"""/v1/files: upload, look, delete, limits, expiry, and what a start finds in the directory (7.6, A12, A13, S32)."""
import os
import re
import resource
import sqlite3
import time

import pytest
from batch_client import create, file_of, form, jsonl, line, post_form, upload
from conftest import check_error, wait_until


@pytest.fixture(scope="module")
def small(make_server):
    """Narrow limits."""
    return make_server({"BATCH_MAX_ROWS": "3", "BATCH_MAX_FILE_BYTES": "2000", "BATCH_MAX_LINE_BYTES": "1000"}, model=None)


def stored(server):
    return sorted(p.name for p in (server.state / "batch_files").iterdir())


def test_a_file_comes_back_byte_for_byte(server):
    data = bytes(range(256)) * 9 + "é\u2028\n".encode()
    made = file_of(server, data)
    assert re.fullmatch(r"file-[0-9a-f]{24}", made["id"])
    assert (made["object"], made["bytes"], made["purpose"], made["status"], made["status_details"]) == (
        "file", len(data), "batch", "processed", None)
    assert made["expires_at"] - made["created_at"] == 30 * 86400 and abs(made["created_at"] - time.time()) < 60
    assert server.get(f"/v1/files/{made['id']}").json() == made
    got = server.get(f"/v1/files/{made['id']}/content")
    assert (got.status, got.body) == (200, data)
    assert (got.header("Content-Type"), got.header("Content-Length")) == ("application/jsonl", str(len(data)))
    head = server.call("HEAD", f"/v1/files/{made['id']}/content")
    assert (head.status, head.body, head.header("Content-Length")) == (200, b"", str(len(data)))
    assert (server.state / "batch_files" / made["id"]).read_bytes() == data
    assert (server.state / "batch_files" / made["id"]).stat().st_mode & 0o777 == 0o600


def test_a_file_larger_than_the_memory_for_bodies_comes_back_too(server):
    data = b"x" * (40 << 20)
    made = file_of(server, data)
    assert server.get(f"/v1/files/{made['id']}/content").body == data
    assert server.call("DELETE", f"/v1/files/{made['id']}").status == 200


@pytest.mark.parametrize("name,kept", [
    ("a.jsonl", "a.jsonl"), ("../../etc/passwd", "passwd"), (r"C:\dir\b.jsonl", "b.jsonl"), ('x\\"y%22.jsonl', 'x"y".jsonl'),
    ("häns.jsonl", "häns.jsonl"), ("", "file"), ("dir/", "file"), ("é" * 300, "é" * 127),
])
def test_the_name_is_only_a_name(server, name, kept):
    assert file_of(server, b"{}\n", name=name)["filename"] == kept


def test_the_data_may_hold_what_looks_like_a_boundary(server):
    data = b"--b0undary\r\n--b0undaryX\r\n\r\n--b0undar\r\n\r\n--b0undary-- ?"
    body = form([('name="file"; filename="a"', data.replace(b"\r\n\r\n--b0undary-- ?", b"")), ('name="purpose"', b"batch")])
    answer = post_form(server, body.replace(b"--b0undary\r\n--b0undaryX", b"-b0undary\r\n--b0undaryX"))
    assert answer.status == 200
    assert server.get(f"/v1/files/{answer.json()['id']}/content").body == b"-b0undary\r\n--b0undaryX\r\n\r\n--b0undar"


def test_the_upload_may_say_when_it_expires(server):
    parts = [('name="file"; filename="a"', b"{}"), ('name="purpose"', b"batch"), ('name="expires_after[anchor]"', b"created_at")]
    made = post_form(server, form(parts + [('name="expires_after[seconds]"', b"7200")])).json()
    assert made["expires_at"] - made["created_at"] == 7200
    for seconds in (b"3599", b"2592001", b"x", b""):
        answer = post_form(server, form(parts + [('name="expires_after[seconds]"', seconds)]))
        check_error(answer, 400, "invalid_batch_request", "expires_after[seconds]")
    answer = post_form(server, form(parts[:2] + [('name="expires_after[anchor]"', b"last_active_at")]))
    check_error(answer, 400, "invalid_batch_request", "expires_after[anchor]")


FILE = ('name="file"; filename="a"', b"{}")
PURPOSE = ('name="purpose"', b"batch")
SECONDS = ('name="expires_after[seconds]"', b"7200")


@pytest.mark.parametrize("body,param", [
    (form([PURPOSE]), "file"), (form([FILE]), "purpose"), (form([FILE, ('name="purpose"', b"fine-tune")]), "purpose"),
    (form([FILE, PURPOSE, FILE]), "file"), (form([PURPOSE, FILE, PURPOSE]), "purpose"),
    (form([FILE, PURPOSE, SECONDS, SECONDS]), "expires_after[seconds]"), (form([FILE, PURPOSE, ('name="more"', b"1")]), "more"),
    (form([FILE, PURPOSE])[:-6], "file"), (form([FILE, PURPOSE], "other"), "file"), (b"", "file"), (b"--b0undary--\r\n", "file"),
    (b"--b0undary\r\n\r\nx\r\n--b0undary--", "file"), (b"--b0undary\r\nno colon\r\n\r\nx\r\n--b0undary--", "file"),
    (form([('filename="a"', b"x")]), "file"), (form([FILE, ('name="' + "n" * 200 + '"', b"x")]), "file"),
    (b"--b0undary\r\nContent-Disposition: form-data; name=\"file\"\r\nContent-Transfer-Encoding: base64\r\n\r\nx\r\n--b0undary--", "file"),
    (form([(b'name="file"; filename="\xff"'.decode("latin-1"), b"x")]).replace(b"\xc3\xbf", b"\xff"), "file"),
])
def test_a_bad_upload_is_refused_by_its_part_and_leaves_nothing(server, body, param):
    before = stored(server)
    check_error(post_form(server, body), 400, "invalid_batch_request", param)
    assert stored(server) == before


@pytest.mark.parametrize("type_", ["application/json", "multipart/form-data", "multipart/form-data; boundary=",
                                   "multipart/form-data; boundary=" + "b" * 71, "text/plain; boundary=b0undary"])
def test_a_body_that_is_no_form_is_refused(server, type_):
    check_error(server.call("POST", "/v1/files", form([FILE, PURPOSE]), {"Content-Type": type_}), 400, "invalid_batch_request", "file")


def test_a_boundary_may_be_quoted(server):
    type_ = 'Multipart/Form-Data; charset=utf-8; boundary="b0undary"'
    assert server.call("POST", "/v1/files", form([FILE, PURPOSE]), {"Content-Type": type_}).status == 200


def test_limits_name_themselves_and_the_measured_value(small):
    answer = upload(small, b"{}\n" * 4)
    assert "4 rows" in check_error(answer, 400, "batch_file_limit", "file")["message"]
    answer = upload(small, b"x" * 2001)
    assert "2001 bytes" in check_error(answer, 400, "batch_file_limit", "file")["message"]
    check_error(upload(small, b"x" * (2001 + 65536)), 413, "payload_too_large")
    assert stored(small) == []
    assert upload(small, b"{}\n \n\n{}\n{}").status == 200


@pytest.mark.parametrize("name", ["file-" + "0" * 24, "..%2f..%2fetc%2fpasswd", "%00", "file-x", "file-" + "0" * 100, "cairn.db",
                                  "file-" + "0" * 23 + "G", "batch_" + "0" * 24])
def test_an_id_that_is_none_is_not_found(server, name):
    for path in (name, f"{name}/content"):
        check_error(server.get(f"/v1/files/{path}"), 404, "file_not_found", "file_id")
    check_error(server.call("DELETE", f"/v1/files/{name}"), 404, "file_not_found", "file_id")
    assert server.get("/v1/files/../cairn.db/content").status == 404


def test_pages(make_server):
    own = make_server(model=None)
    assert own.get("/v1/files").json() == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    ids = [file_of(own, b"{}\n")["id"] for _ in range(5)]
    assert [f["id"] for f in own.get("/v1/files").json()["data"]] == ids[::-1]
    page = own.get("/v1/files?limit=2").json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[4], ids[3], True)
    page = own.get(f"/v1/files?limit=3&after={ids[3]}").json()
    assert ([f["id"] for f in page["data"]], page["has_more"]) == (ids[2::-1], False)
    page = own.get(f"/v1/files?order=asc&limit=2&after={ids[1]}").json()
    assert ([f["id"] for f in page["data"]], page["has_more"]) == (ids[2:4], True)
    assert own.get("/v1/files?purpose=batch_output").json()["data"] == []
    for query, param in (("limit=0", "limit"), ("limit=10001", "limit"), ("limit=x", "limit"), ("limit=", "limit"), ("order=up", "order"),
                         ("after=file-x", "after"), (f"after=file-{'0' * 24}", "after")):
        check_error(own.get(f"/v1/files?{query}"), 400, "invalid_parameter", param)


def test_a_deleted_file_is_gone_and_says_so(server):
    made = file_of(server, b"{}\n")
    assert server.call("DELETE", f"/v1/files/{made['id']}").json() == {"id": made["id"], "object": "file", "deleted": True}
    check_error(server.call("DELETE", f"/v1/files/{made['id']}"), 404, "file_deleted", "file_id")
    check_error(server.get(f"/v1/files/{made['id']}/content"), 404, "file_deleted", "file_id")
    assert server.get(f"/v1/files/{made['id']}").json()["status"] == "deleted"
    check_error(create(server, made["id"]), 404, "file_deleted", "input_file_id")
    assert made["id"] not in [f["id"] for f in server.get("/v1/files?limit=10000").json()["data"]]
    assert made["id"] not in stored(server)


def test_expired_files_lose_their_bytes_then_their_row(make_server):
    own = make_server({"BATCH_RETENTION_INTERVAL_S": "0.05"}, model=None)
    made = file_of(own, jsonl([line(own, "a")]))
    other = file_of(own, b"{}\n")
    db = sqlite3.connect(own.state / "cairn.db", timeout=30)
    db.execute("UPDATE files SET expires_s = ? WHERE id = ?", (int(time.time()) - 1, made["id"]))
    db.commit()
    check_error(own.get(f"/v1/files/{made['id']}/content"), 404, "file_expired", "file_id")
    assert own.get(f"/v1/files/{made['id']}").json()["status"] == "expired"
    check_error(create(own, made["id"]), 404, "file_expired", "input_file_id")
    wait_until(lambda: made["id"] not in stored(own))
    assert stored(own) == [other["id"]]
    check_error(own.get(f"/v1/files/{made['id']}/content"), 404, "file_expired", "file_id")
    db.execute("UPDATE files SET ended_s = ? WHERE id = ?", (int(time.time()) - 31 * 86400, made["id"]))
    db.commit()
    wait_until(lambda: own.get(f"/v1/files/{made['id']}").status != 200)
    check_error(own.get(f"/v1/files/{made['id']}"), 404, "file_not_found", "file_id")
    assert own.get(f"/v1/files/{other['id']}/content").body == b"{}\n"


def test_a_start_removes_what_no_row_knows_and_nothing_else(make_server, tmp_path):
    own = make_server(model=None, state=tmp_path)
    kept, deleted = file_of(own, b"kept\n"), file_of(own, b"deleted\n")
    own.call("DELETE", f"/v1/files/{deleted['id']}")
    own.stop()
    directory = tmp_path / "batch_files"
    for name in (f"file-{'1' * 24}", f"file-{'2' * 24}.partial", deleted["id"], f"{kept['id']}.partial", "notes.txt", "file-x"):
        (directory / name).write_bytes(b"?")
    own.start()
    assert stored(own) == sorted([kept["id"], "notes.txt", "file-x"])
    assert own.get(f"/v1/files/{kept['id']}/content").body == b"kept\n"


def test_a_file_that_lost_its_bytes_is_a_fault_not_a_crash(server):
    made = file_of(server, b"{}\n")
    os.unlink(server.state / "batch_files" / made["id"])
    check_error(server.get(f"/v1/files/{made['id']}/content"), 500, "server_error")
    other = file_of(server, b"{}\n")
    with open(server.state / "batch_files" / other["id"], "ab") as f:
        f.write(b"more")
    check_error(server.get(f"/v1/files/{other['id']}/content"), 500, "server_error")


def test_a_full_disk_refuses_the_upload_and_leaves_nothing(make_server):
    own = make_server(model=None)
    kept = file_of(own, b"kept\n")
    _, most = resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE, (1 << 20, most))
    answer = upload(own, b"x" * (3 << 20))
    resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE, (most, most))
    check_error(answer, 507, "insufficient_storage")
    assert stored(own) == [kept["id"]]
    assert file_of(own, b"x" * (3 << 20))["bytes"] == 3 << 20
