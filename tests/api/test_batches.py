"""/v1/batches: validation, rows, counts, ends, leases, restarts, what waits (7.7, A11, B17, S33)."""
import json
import os
import re
import resource
import signal
import sqlite3
import threading
import time

import pytest
from batch_client import (ENDED, cancel, create, end_of, error_codes, file_of, jsonl, line, lines_of, look, results, start,
                          upload, wait, wait_for)
from conftest import CASES, MODELS, check_error, wait_until
from trainer import Trainer, granted, refused

KEYS = """id object endpoint model errors input_file_id completion_window status output_file_id error_file_id created_at
in_progress_at expires_at finalizing_at completed_at failed_at expired_at cancelling_at cancelled_at request_counts metadata
millm""".split()


# ---- rows and results

def test_rows_answer_as_requests_do_in_the_order_of_the_input(server):
    prompts = {"first": "The river", "second": "hello there", "third": "é😀", "fourth": "a"}
    batch = start(server, jsonl([line(server, k, v, max_tokens=6) for k, v in prompts.items()]), metadata={"k": "v"})
    assert sorted(look(server, batch)) == sorted(KEYS)
    assert re.fullmatch(r"batch_[0-9a-f]{24}", batch["id"]) and batch["status"] == "validating"
    assert batch["expires_at"] - batch["created_at"] == 24 * 3600
    batch = wait(server, batch)
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 4, "completed": 4, "failed": 0})
    assert (batch["model"], batch["metadata"], batch["errors"], batch["error_file_id"]) == (server.model, {"k": "v"}, None, None)
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    good, _ = results(server, batch)
    assert [x["custom_id"] for x in good] == list(prompts)
    for x in good:
        plain = server.complete(prompts[x["custom_id"]], max_tokens=6, temperature=0)
        body = x["response"]["body"]
        assert (body["choices"], body["model"]) == (plain.json()["choices"], server.model)
        assert body["usage"]["total_tokens"] == plain.json()["usage"]["total_tokens"]
        assert x["response"]["millm"]["headers"]["X-miLLM-Model"] == plain.header("X-miLLM-Model")
    out = server.get(f"/v1/files/{batch['output_file_id']}").json()
    assert (out["purpose"], out["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert out["expires_at"] - out["created_at"] == 30 * 86400
    check_error(create(server, out["id"]), 400, "invalid_batch_request", "input_file_id")
    check_error(cancel(server, batch), 409, "batch_state_conflict", "batch_id")


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/embeddings"])
def test_the_other_endpoints(server, url):
    batch = wait(server, start(server, jsonl([line(server, "a", url=url), line(server, "b", "two", url=url)]), url))
    good, bad = results(server, batch)
    assert len(good) == 2 and not bad
    plain = server.post(url, line(server, "a", url=url)["body"]).json()
    same = "choices" if "chat" in url else "data"
    assert good[0]["response"]["body"][same] == plain[same]


def test_a_row_that_is_refused_stands_in_the_error_file_and_the_others_run(server):
    lines = [line(server, "good"), line(server, "long", "word " * 100000), line(server, "bad", max_tokens=-1), line(server, "foo", foo=1),
             line(server, "name", model="nope"), line(server, "suffix", suffix="x"), line(server, "also")]
    batch = wait(server, start(server, jsonl(lines)))
    assert batch["status"] == "completed"
    good, bad = results(server, batch)
    assert [x["custom_id"] for x in good] == ["good", "also"]
    assert [(x["custom_id"], x["line"], x["error"]["code"], x["response"]["status_code"]) for x in bad] == [
        ("long", 2, "context_length_exceeded", 400), ("bad", 3, "invalid_request", 400), ("foo", 4, "unused_fields_refused", 400),
        ("name", 5, "model_not_found", 404), ("suffix", 6, "field_not_honoured", 400)]
    assert bad[1]["response"]["body"]["error"]["code"] == "invalid_parameter"
    assert bad[1]["response"]["body"]["error"]["param"] == "max_tokens"
    assert [(e["line"], e["code"]) for e in batch["errors"]["data"]] == [
        (3, "invalid_request"), (4, "unused_fields_refused"), (5, "model_not_found"), (6, "field_not_honoured")]


@pytest.mark.parametrize("name,outcome", [r.split("\t") for r in (CASES / "batch.tsv").read_text().splitlines()[1:]])
def test_an_input_file_of_the_collection(server, name, outcome):
    data = (CASES / name).read_bytes().replace(b'"model":"M"', b'"model":' + json.dumps(server.model).encode())
    batch = wait(server, start(server, data))
    good, bad = results(server, batch)
    codes = set(error_codes(batch)) | {x["error"]["code"] for x in bad}
    expected = {
        "duplicate_id": ("completed", 1, {"duplicate_custom_id"}, 2), "broken_json_line": ("completed", 2, {"invalid_json"}, 2),
        "wrong_url": ("completed", 1, {"invalid_url"}, 2), "id_missing": ("failed", 0, {"invalid_custom_id"}, 1),
        "id_number": ("failed", 0, {"invalid_custom_id"}, 1), "bad_utf8_line": ("completed", 1, {"invalid_json"}, 2),
        "empty": ("failed", 0, {"empty_file"}, None), "one_bad_request": ("completed", 1, {"invalid_request"}, 2),
        "stream_true": ("failed", 0, {"stream_not_supported"}, 1), "bom": ("completed", 1, set(), None),
        "order_and_unicode_ids": ("completed", 3, set(), None),
    }.get(name[6:-6], ("completed", 2, set(), None))
    assert (batch["status"], len(good), codes) == expected[:3], outcome
    if expected[3]:
        assert [x["line"] for x in bad] == [expected[3]] == [e["line"] for e in batch["errors"]["data"]]
    if "completed, " in outcome:
        ids = [json.loads(x)["custom_id"] for x in data.decode("utf-8-sig").splitlines() if x.strip()]
        assert [x["custom_id"] for x in good + bad] == ids
    if name.endswith(("stream_true.jsonl", "one_bad_request.jsonl")):
        assert bad[0]["response"]["status_code"] == 400


@pytest.mark.parametrize("change,code", [
    (b"[]", "invalid_line"), (b"nonsense", "invalid_json"), ({"more": 1}, "invalid_line"), ({"custom_id": ""}, "invalid_custom_id"),
    ({"custom_id": "x" * 513}, "invalid_custom_id"), ({"method": "GET"}, "invalid_method"), ({"method": None}, "invalid_method"),
    ({"url": "/v1/embeddings"}, "invalid_url"), ({"body": 7}, "invalid_body"), ({"body": {}}, "invalid_request"),
    ({"custom_id": 5, "method": "GET", "url": 7, "body": 7}, "invalid_custom_id"), ({"method": "GET", "url": 7}, "invalid_method"),
    ({"url": "", "body": None}, "invalid_url"),
])
def test_the_code_of_a_bad_line(server, change, code):
    data = change + b"\n" if isinstance(change, bytes) else jsonl([{**line(server, "a"), **change}])
    batch = wait(server, start(server, data))
    good, bad = results(server, batch)
    assert (batch["status"], error_codes(batch), len(bad)) == ("failed", [code], 1)
    assert batch["output_file_id"] is None and bad[0]["error"]["code"] == code


def test_a_custom_id_of_512_characters_and_any_bytes_comes_back(server):
    ids = ["é" * 512, 'a\u0000b\u2028"\\\n', " "]
    batch = wait(server, start(server, jsonl([line(server, i) for i in ids])))
    assert [x["custom_id"] for x in results(server, batch)[0]] == ids


def test_a_line_that_is_too_large_is_that_line_s_error(make_server):
    own = make_server({"BATCH_MAX_LINE_BYTES": "1000", "BATCH_ERRORS_SHOWN": "2", "BATCH_CHUNK_ROWS": "3"})
    huge, edge = line(own, "huge", "x" * 200000), line(own, "e", "the river " * 60)
    edge["custom_id"] = "e" * (1001 - len(json.dumps(edge)))
    over = {**edge, "custom_id": edge["custom_id"] + "e"}
    assert len(json.dumps(edge)) == 1000
    batch = wait(own, start(own, jsonl([huge, edge, over, line(own, "last"), huge])))
    good, bad = results(own, batch)
    assert ([x["custom_id"] for x in good], [(x["line"], x["error"]["code"], x["custom_id"]) for x in bad]) == (
        [edge["custom_id"], "last"], [(n, "line_too_large", None) for n in (1, 3, 5)])
    assert len(batch["errors"]["data"]) == 2
    many = [line(own, f"r{i}", f"n {i}") if i % 3 else {"custom_id": f"r{i}"} for i in range(100)]
    good, bad = results(own, wait(own, start(own, jsonl(many))))
    assert [x["custom_id"] for x in good] == [f"r{i}" for i in range(100) if i % 3]
    assert [x["line"] for x in bad] == [i + 1 for i in range(100) if i % 3 == 0]


def test_more_than_one_model_or_another_one_fails_the_batch(server, make_server):
    own = make_server()
    own.register(MODELS / "tiny-qwen2")
    batch = wait(own, start(own, jsonl([line(own, "a"), line(own, "b", model="tiny-qwen2"), line(own, "c", model="nope")])))
    good, bad = results(own, batch)
    assert (batch["status"], error_codes(batch)) == ("failed", ["multiple_models", "model_not_found"])
    assert [x["error"]["code"] for x in bad] == ["batch_failed", "batch_failed", "model_not_found"] and not good
    batch = wait(own, start(own, jsonl([line(own, "a", model="tiny-qwen2")])))
    assert (batch["status"], error_codes(batch)) == ("failed", ["model_not_resident"])
    assert own.get("/api/models").json()["data"][0]["status"] == "ready"  # a batch loads nothing


# ---- requests

def test_the_order_of_refusals(server):
    made = file_of(server, jsonl([line(server, "a")]))["id"]
    base = {"input_file_id": made, "endpoint": "/v1/completions", "completion_window": "24h"}
    wrong = [({"input_file_id": "file-" + "0" * 24}, 404, "file_not_found", "input_file_id"),
             ({"endpoint": "/v1/images"}, 400, "invalid_batch_request", "endpoint"),
             ({"completion_window": "1d"}, 400, "invalid_batch_request", "completion_window"),
             ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, 400, "invalid_batch_request", "output_expires_after.seconds")]
    for i in range(len(wrong)):
        body = dict(base)
        for change in wrong[i:]:
            body.update(change[0])
        check_error(server.post("/v1/batches", body), *wrong[i][1:])
    for window in ("0h", "169h", "024h", "h", "24", "24H", " 24h", "99999999999h", 24, None):
        check_error(server.post("/v1/batches", {**base, "completion_window": window}), 400, "invalid_batch_request", "completion_window")
    for expiry in (7, {}, {"anchor": "x", "seconds": 3600}, {"anchor": "created_at"}, {"anchor": "created_at", "seconds": 2592001}):
        check_error(server.post("/v1/batches", {**base, "output_expires_after": expiry}), 400, "invalid_batch_request")
    for metadata in ([], {"k": 1}, {str(i): "x" for i in range(17)}, {"k": "x" * 5000}):
        check_error(server.post("/v1/batches", {**base, "metadata": metadata}), 400, "invalid_batch_request", "metadata")
    check_error(server.post("/v1/batches", {**base, "pack": 1}), 400, "invalid_batch_request", "pack")
    check_error(server.post("/v1/batches", b"{"), 400, "invalid_parameter")
    check_error(server.post("/v1/batches", {}), 400, "invalid_batch_request", "input_file_id")


def test_unknown_fields_are_reported_or_refused(server):
    made = file_of(server, jsonl([line(server, "a")]))["id"]
    check_error(create(server, made, headers={"X-miLLM-Strict": "1"}, more=1), 400, "unused_fields_refused", "more")
    answer = create(server, made, more=1)
    assert answer.header("X-miLLM-Ignored-Fields") == '"more"'
    wait(server, answer.json())


@pytest.mark.parametrize("name", ["batch_" + "0" * 24, "batch_x", "%00", "..%2fx", "file-" + "0" * 24])
def test_a_batch_that_is_none_is_not_found(server, name):
    check_error(server.get(f"/v1/batches/{name}"), 404, "batch_not_found", "batch_id")
    check_error(server.post(f"/v1/batches/{name}/cancel"), 404, "batch_not_found", "batch_id")
    check_error(server.post(f"/v1/batches/{name}/lease"), 404, "batch_not_found", "batch_id")


def test_pages_and_the_expiry_of_results(make_server):
    own = make_server()
    expiry = {"anchor": "created_at", "seconds": 3600}
    batches = [wait(own, start(own, jsonl([line(own, "a")]), output_expires_after=expiry, pack=True)) for _ in range(3)]
    ids = [b["id"] for b in batches]
    assert batches[0]["millm"] == {"pack": True, "waiting_reason": None, "lease_mode": "own", "completion_window_extension": False,
                                   "output_expires_after": expiry}
    page = own.get("/v1/batches?limit=2").json()
    assert ([b["id"] for b in page["data"]], page["has_more"], page["first_id"], page["last_id"]) == (ids[:0:-1], True, ids[2], ids[1])
    page = own.get(f"/v1/batches?after={ids[1]}").json()
    assert ([b["id"] for b in page["data"]], page["has_more"]) == ([ids[0]], False)
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("after=x", "after")):
        check_error(own.get(f"/v1/batches?{query}"), 400, "invalid_parameter", param)
    out = own.get(f"/v1/files/{batches[0]['output_file_id']}").json()
    assert out["expires_at"] - out["created_at"] == 3600
    assert own.call("DELETE", f"/v1/files/{batches[0]['input_file_id']}").status == 200


# ---- cancelling, and who goes first

def many(server, n=3000, tokens=100):
    return jsonl([line(server, f"r{i}", f"count {i}", max_tokens=tokens) for i in range(n)])


def test_a_cancelled_batch_has_a_result_for_every_line(server):
    batch = wait_for(server, start(server, many(server)), lambda b: b["request_counts"]["completed"] > 0)
    check_error(server.call("DELETE", f"/v1/files/{batch['input_file_id']}"), 409, "file_in_use", "file_id")
    answer = cancel(server, batch)
    assert (answer.status, answer.json()["status"]) == (200, "cancelling")
    batch = wait(server, answer.json())
    assert batch["status"] == "cancelled" and batch["cancelling_at"] and batch["cancelled_at"] and not batch["completed_at"]
    good, bad = results(server, batch)
    assert [x["custom_id"] for x in good + bad] == [f"r{i}" for i in range(3000)]
    assert {x["error"]["code"] for x in bad} == {"batch_cancelled"} and good
    check_error(cancel(server, batch), 409, "batch_state_conflict", "batch_id")
    assert server.call("DELETE", f"/v1/files/{batch['input_file_id']}").status == 200


def test_others_go_first_and_rows_are_not_pending_requests(server):
    batch = wait(server, start(server, many(server, 1000, 400)), ("in_progress",) + ENDED)
    peak = 0
    for _ in range(20):
        inference = server.get("/api/health/detailed").json()["inference"]
        assert inference["queue_pending"] == 0
        peak = max(peak, inference["in_flight"])
        assert server.complete("hello", max_tokens=2).status == 200
    assert 1 <= peak <= 5  # half of the slots, and this one
    assert inference["batch_backlog_rows"] is None or inference["batch_backlog_rows"] > 0
    assert look(server, batch)["status"] == "in_progress"
    end_of(server, batch)


def test_a_second_batch_is_validated_at_once_and_waits_for_its_turn(server):
    first = wait(server, start(server, many(server)), ("in_progress",))
    second = start(server, jsonl([line(server, "a"), b"x" and line(server, "b", max_tokens=-1)]))
    second = wait_for(server, second, lambda b: b["millm"]["waiting_reason"] == "queued")
    assert second["status"] == "in_progress" and second["request_counts"]["total"] == 2
    end_of(server, first)
    assert wait(server, second)["request_counts"] == {"total": 2, "completed": 1, "failed": 1}


# ---- leases

def lease_of(server):
    return granted(server.get(f"/api/models/{server.row}/lease"))


def take(server):
    return granted(server.post(f"/api/models/{server.row}/lease", {"holder": "bench", "reason": "a run", "ttl_seconds": 60}), 201)


def end_lease(server, lease):
    return server.call("DELETE", f"/api/models/{server.row}/lease", headers={"X-miLLM-Lease": lease["lease_id"]})


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server({"BATCH_WAIT_POLL_S": "0.05"})
    server.other = server.register(MODELS / "tiny-qwen2")["id"]
    return server


def test_a_running_batch_leases_its_model_and_lets_go_at_the_end(own):
    batch = wait_for(own, start(own, many(own)), lambda b: b["request_counts"]["completed"] > 0)
    lease = lease_of(own)["lease"]
    assert lease["holder"] == f"millm-batch:{batch['id']}" and lease["ttl_seconds"] == 900
    details = refused(own.post(f"/api/models/{own.other}/load"), 409, "MODEL_LEASED")
    assert details["holder"] == lease["holder"]
    end_of(own, batch)
    assert lease_of(own)["lease"] is None and lease_of(own)["last_ended"]["end_reason"] == "released"


def test_a_lease_of_another_stands_in_the_way_unless_it_is_presented(own):
    lease = take(own)
    made = file_of(own, jsonl([line(own, "a")]))["id"]
    check_error(create(own, made), 409, "model_leased")
    check_error(create(own, made, headers={"X-miLLM-Lease": "x"}), 409, "model_leased")
    batch = create(own, made, headers={"X-miLLM-Lease": lease["lease_id"]}).json()
    assert batch["millm"]["lease_mode"] == "caller"
    assert wait(own, batch)["status"] == "completed"
    assert lease_of(own)["lease"]["holder"] == "bench"  # never released by the batch
    end_lease(own, lease)


def test_a_lease_that_comes_between_makes_it_wait_and_can_be_handed_over(make_server):
    own = make_server({"BATCH_WAIT_POLL_S": "0.05", "BATCH_LEASE_TTL_S": "1", "WEIGHTS_QUIESCE_MAX_HOLD_S": "600",
                       "CAIRN_KERNELS": "ref"})  # slow, so that the batch is surely not through before the quiesce
    batch = wait_for(own, start(own, many(own, 12000, 20)), lambda b: b["request_counts"]["completed"] > 0)
    trainer = Trainer(own)
    trainer.do("quiesce")  # the rows are held, and the batch's lease runs out meanwhile
    assert look(own, batch)["status"] == "in_progress"
    wait_until(lambda: not lease_of(own)["lease"])
    lease = take(own)
    trainer.do("resume")
    trainer.detach()
    batch = wait_for(own, batch, lambda b: b["millm"]["waiting_reason"] == "lease_unavailable")
    path = f"/v1/batches/{batch['id']}/lease"
    check_error(own.post(path), 400, "invalid_lease_request", "X-miLLM-Lease")
    check_error(own.post(path, headers={"X-miLLM-Lease": "nope"}), 404, "lease_not_found", "X-miLLM-Lease")
    assert look(own, batch)["status"] == "in_progress"
    answer = own.post(path, headers={"X-miLLM-Lease": lease["lease_id"]})
    assert answer.status == 200 and answer.json()["millm"]["lease_mode"] == "caller"
    done = batch["request_counts"]["completed"]
    wait_for(own, batch, lambda b: b["request_counts"]["completed"] > done + 40)
    batch = end_of(own, batch)
    results(own, batch)
    assert lease_of(own)["lease"]["holder"] == "bench"
    check_error(own.post(path, headers={"X-miLLM-Lease": lease["lease_id"]}), 409, "batch_state_conflict", "batch_id")


def test_a_batch_that_meets_a_lease_at_the_end_of_its_validation_fails(own):
    data = many(own, 30000)
    batch = start(own, data)
    lease = take(own)
    batch = wait(own, batch)
    end_lease(own, lease)
    assert (batch["status"], error_codes(batch)) == ("failed", ["model_leased"])
    good, bad = results(own, batch)
    assert len(bad) == 30000 and {x["error"]["code"] for x in bad} == {"batch_failed"} and not good


# ---- weights that change

def test_a_save_that_renames_the_model_does_not_stop_a_batch(make_server):
    own = make_server()
    batch = wait_for(own, start(own, many(own, 2000, 40)), lambda b: b["request_counts"]["completed"] > 0)
    trainer = Trainer(own)
    saved = granted(trainer.save("run", 1), 201)
    trainer.detach()
    done = look(own, batch)["request_counts"]["completed"]
    batch = wait_for(own, batch, lambda b: b["request_counts"]["completed"] > done + 40)
    good, bad = results(own, end_of(own, batch))
    names = [x["response"]["millm"]["headers"]["X-miLLM-Model"].split('"')[1] for x in good]
    assert set(names) == {own.model, saved["name"]} and names[0] == own.model and names[-1] == saved["name"]
    assert {x["error"]["code"] for x in bad} == {"batch_cancelled"}
    batch = wait(own, start(own, jsonl([line(own, "a")])))  # the old name is no name any more
    assert (batch["status"], error_codes(batch)) == ("failed", ["model_not_found"])


def test_a_load_ends_the_binding_and_the_rows_wait(own):
    lease = take(own)
    batch = start(own, many(own), headers={"X-miLLM-Lease": lease["lease_id"]})
    batch = wait_for(own, batch, lambda b: b["request_counts"]["completed"] > 0)
    answer = own.post(f"/api/models/{own.other}/load", headers={"X-miLLM-Lease": lease["lease_id"]})
    assert answer.status == 202
    batch = wait_for(own, batch, lambda b: b["millm"]["waiting_reason"] == "model_not_resident")
    done = batch["request_counts"]["completed"]
    own.load(own.row)  # the same name again, but other weights may have come with it
    time.sleep(0.5)
    assert look(own, batch)["millm"]["waiting_reason"] == "model_not_resident"
    batch = end_of(own, batch)
    assert batch["request_counts"]["completed"] == done and batch["status"] == "cancelled"
    results(own, batch)


def test_torn_weights_make_a_batch_wait_and_a_load_is_not_in_its_way(make_server):
    own = make_server({"WEIGHTS_COMMIT_WATCHDOG_S": "0.3", "BATCH_WAIT_POLL_S": "0.05"})
    batch = wait_for(own, start(own, many(own)), lambda b: b["request_counts"]["completed"] > 0)
    trainer = Trainer(own)
    trainer.do("quiesce")
    trainer.do("commit-begin")
    wait_until(lambda: own.get(f"/v1/batches/{batch['id']}").status == 503)
    for route in ("/v1/files", "/v1/batches", f"/v1/files/{batch['input_file_id']}", f"/v1/files/{batch['input_file_id']}/content"):
        check_error(own.get(route), 503, "weights_torn")
    check_error(upload(own, b"{}"), 503, "weights_torn")
    check_error(cancel(own, batch), 503, "weights_torn")
    wait_until(lambda: not lease_of(own)["lease"])
    trainer.detach()
    granted(own.weights("load", {"model_id": own.row}))
    wait_for(own, look(own, batch), lambda b: b["millm"]["waiting_reason"] == "model_not_resident")
    end_of(own, batch)


# ---- restarts

def restart(server, model, how=signal.SIGKILL):
    server.stop(how)
    server.env["AUTO_LOAD_MODEL"] = model
    server.start()


def recorded(server, batch):
    db = sqlite3.connect(server.state / "cairn.db", timeout=30)
    name, n, done = db.execute("SELECT output_file_id, output_bytes, completed FROM batches WHERE id = ?", (batch["id"],)).fetchone()
    db.close()
    return (server.state / "batch_files" / f"{name}.partial").read_bytes()[:n], done


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_goes_on_behind_the_last_recorded_row(make_server, tmp_path, how):
    own = make_server(state=tmp_path)
    lines = [line(own, f"r{i}", f"count {i}", max_tokens=30, temperature=1) for i in range(600)]
    lines[3] = line(own, "r3", max_tokens=-1)
    batch = wait_for(own, start(own, jsonl(lines)), lambda b: b["request_counts"]["completed"] >= 20)
    for _ in range(2):
        own.stop(how)
        before, done = recorded(own, batch)
        own.env["AUTO_LOAD_MODEL"] = own.model
        own.start()
        batch = look(own, batch)
        assert batch["status"] == "in_progress" and batch["request_counts"]["completed"] >= done
        batch = wait_for(own, batch, lambda b: b["status"] in ENDED or b["request_counts"]["completed"] > done + 20)
    batch = wait(own, batch)
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 600, "completed": 599, "failed": 1})
    assert own.get(f"/v1/files/{batch['output_file_id']}/content").body.startswith(before)
    good, bad = results(own, batch)
    assert [x["custom_id"] for x in good] == [f"r{i}" for i in range(600) if i != 3] and bad[0]["line"] == 4


def change(server, batch, **columns):
    """A batch as an earlier process may have left it."""
    db = sqlite3.connect(server.state / "cairn.db", timeout=30)
    for name, value in columns.items():
        db.execute(f"UPDATE batches SET {name} = ? WHERE id = ?", (value, batch["id"]))
    db.commit()
    db.close()


def test_every_open_state_ends_after_a_restart(make_server, tmp_path):
    own = make_server({"BATCH_WAIT_POLL_S": "0.05"}, state=tmp_path)
    def running():
        return wait_for(own, start(own, many(own, 400, 60)), lambda b: b["request_counts"]["completed"] > 0)
    cancelled = running()
    own.stop(signal.SIGKILL)
    change(own, cancelled, status="cancelling", cancelling_s=int(time.time()))
    own.env["AUTO_LOAD_MODEL"] = own.model
    own.start()
    batch = wait(own, look(own, cancelled))
    assert batch["status"] == "cancelled" and {x["error"]["code"] for x in results(own, batch)[1]} == {"batch_cancelled"}

    expired = running()
    own.stop(signal.SIGKILL)
    change(own, expired, expires_s=int(time.time()) - 1)
    own.start()
    batch = wait(own, look(own, expired))
    assert batch["status"] == "expired" and batch["expired_at"] and results(own, batch)[0]
    assert {x["error"]["code"] for x in results(own, batch)[1]} == {"batch_expired"}

    again = running()
    own.stop(signal.SIGKILL)
    change(own, again, status="validating", in_progress_s=None, next_offset=0, next_line=1, output_bytes=0, error_bytes=0, completed=0, failed=0)
    own.start()
    assert results(own, wait(own, look(own, again)))[0] and look(own, again)["request_counts"]["completed"] == 400

    done = wait(own, start(own, jsonl([line(own, "a"), line(own, "b", max_tokens=-1)])))
    kept = [own.get(f"/v1/files/{done[k]}/content").body for k in ("output_file_id", "error_file_id")]
    own.stop(signal.SIGKILL)
    change(own, done, status="finalizing", completed_s=None)  # renamed, not yet told
    db = sqlite3.connect(tmp_path / "cairn.db")
    db.execute("DELETE FROM files WHERE id IN (?, ?)", (done["output_file_id"], done["error_file_id"]))
    db.commit()
    db.close()
    own.start()
    batch = wait(own, look(own, done))
    assert batch["status"] == "completed"
    assert [own.get(f"/v1/files/{batch[k]}/content").body for k in ("output_file_id", "error_file_id")] == kept


def test_a_batch_that_was_being_validated_waits_for_its_model_after_a_restart(make_server, tmp_path):
    """A server that has just begun has no model, which is no fault of the batch's. A new batch fails, as ever."""
    own = make_server({"BATCH_WAIT_POLL_S": "0.05"}, state=tmp_path)
    name, row = own.model, own.row
    batch = wait_for(own, start(own, many(own, 400, 60)), lambda b: b["request_counts"]["completed"] > 0)
    own.stop(signal.SIGKILL)
    change(own, batch, status="validating", model=None, in_progress_s=None, next_offset=0, next_line=1, output_bytes=0, error_bytes=0,
           completed=0, failed=0)
    own.start()
    batch = wait_for(own, look(own, batch), lambda b: b["millm"]["waiting_reason"])
    assert (batch["status"], batch["millm"]["waiting_reason"]) == ("validating", "model_not_resident")
    own.register_and_load("tiny-qwen3")  # another one than it names: looked at, and it goes on waiting
    own.model = name
    new = wait(own, start(own, many(own, 2)))  # behind it in the queue
    assert (new["status"], error_codes(new)) == ("failed", ["model_not_resident"])
    assert look(own, batch)["status"] == "validating"
    own.load(row)
    batch = wait(own, look(own, batch))
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 400)
    results(own, batch)


def test_a_batch_whose_time_is_over_before_it_could_be_validated_fails(make_server, tmp_path):
    own = make_server({"BATCH_WAIT_POLL_S": "0.05"}, state=tmp_path)
    batch = wait(own, start(own, jsonl([line(own, "a")])))
    own.stop(signal.SIGKILL)
    change(own, batch, status="validating", model=None, in_progress_s=None, completed_s=None, next_offset=0, next_line=1,
           output_bytes=0, completed=0, total=0)
    own.start()
    batch = wait_for(own, look(own, batch), lambda b: b["millm"]["waiting_reason"])
    assert (batch["status"], batch["millm"]["waiting_reason"]) == ("validating", "model_not_resident")
    change(own, batch, expires_s=int(time.time()) - 1)
    batch = wait(own, look(own, batch))
    assert (batch["status"], error_codes(batch)) == ("failed", ["batch_expired"])
    assert [x["error"]["code"] for x in lines_of(own, batch["error_file_id"])] == ["batch_failed"] and batch["output_file_id"] is None


def test_a_batch_is_forgotten_a_while_after_its_end(make_server):
    own = make_server({"BATCH_RETENTION_INTERVAL_S": "0.05"})
    old, young = (wait(own, start(own, jsonl([line(own, "a")]))) for _ in range(2))
    change(own, old, completed_s=int(time.time()) - 31 * 86400)
    wait_until(lambda: own.get(f"/v1/batches/{old['id']}").status != 200)
    check_error(own.get(f"/v1/batches/{old['id']}"), 404, "batch_not_found", "batch_id")
    assert [b["id"] for b in own.get("/v1/batches").json()["data"]] == [young["id"]]


def test_a_batch_expires_while_its_rows_run(make_server, tmp_path):
    own = make_server({"BATCH_CHUNK_ROWS": "4"}, state=tmp_path)
    batch = wait_for(own, start(own, many(own, 1000, 400)), lambda b: b["request_counts"]["completed"] > 0)
    change(own, batch, expires_s=int(time.time()) + 2)
    batch = wait(own, batch)
    assert batch["status"] == "expired" and batch["expired_at"] - batch["expires_at"] <= 3
    results(own, batch)


def test_an_input_that_goes_away_ends_the_batch_with_what_it_has(make_server):
    own = make_server()
    batch = wait_for(own, start(own, many(own)), lambda b: b["request_counts"]["completed"] > 0)
    os.unlink(own.state / "batch_files" / batch["input_file_id"])
    batch = wait(own, batch)
    assert (batch["status"], error_codes(batch), batch["request_counts"]["total"]) == ("failed", ["input_file_missing"], 3000)
    good = lines_of(own, batch["output_file_id"])
    assert [x["custom_id"] for x in good] == [f"r{i}" for i in range(len(good))] and batch["request_counts"]["completed"] == len(good) > 0
    assert lease_of(own)["lease"] is None


def test_results_that_are_lost_end_the_batch(make_server, tmp_path):
    own = make_server(state=tmp_path)
    batch = wait_for(own, start(own, many(own)), lambda b: b["request_counts"]["completed"] > 0)
    own.stop()
    for path in (tmp_path / "batch_files").glob("*.partial"):
        path.write_bytes(b"")
    own.env["AUTO_LOAD_MODEL"] = own.model
    own.start()
    batch = wait(own, look(own, batch))
    good, bad = results(own, batch)
    assert batch["status"] == "failed" and not good
    assert len(bad) == 3000 and {x["error"]["code"] for x in bad} == {"batch_failed"}


def test_results_that_find_no_room_are_tried_again(make_server):
    """Files may not grow for a while: no row is lost, none is told twice."""
    own = make_server({"BATCH_WAIT_POLL_S": "0.05"})
    batch = wait_for(own, start(own, many(own, 2000, 10)), lambda b: b["request_counts"]["completed"] >= 16)
    _, most = resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE, (1, most))
    before = None
    while (now := look(own, batch)["request_counts"]) != before:
        before = now
        time.sleep(0.5)
    assert look(own, batch)["status"] == "in_progress" and now["completed"] < 2000
    assert own.complete("a", max_tokens=1).status == 200
    resource.prlimit(own.process.pid, resource.RLIMIT_FSIZE, (most, most))
    batch = wait(own, look(own, batch))
    good, bad = results(own, batch)
    assert [x["custom_id"] for x in good] == [f"r{i}" for i in range(2000)] and not bad


@pytest.mark.parametrize("harm,code", [("change", "input_file_changed"), ("shorten", "input_file_changed"), ("remove", "input_file_missing")])
def test_an_input_that_is_not_what_was_uploaded_fails_the_batch(make_server, tmp_path, harm, code):
    own = make_server(state=tmp_path)
    batch = wait(own, start(own, jsonl([line(own, "a")])))
    path = tmp_path / "batch_files" / batch["input_file_id"]
    own.stop()
    change(own, batch, status="validating", model=None, completed=0, next_offset=0, next_line=1, output_bytes=0)
    data = path.read_bytes()
    if harm == "remove":
        os.unlink(path)
    else:
        path.write_bytes(data[:-9] if harm == "shorten" else data.replace(b"hi", b"ho"))
    own.start()
    batch = wait(own, look(own, batch))
    assert (batch["status"], error_codes(batch)) == ("failed", [code]) and batch["failed_at"]


def test_many_clients_and_batches_at_once(server):
    """Uploads, batches, cancels and requests from eight threads: every batch ends with results that add up."""
    ended, faults = [], []

    def work(i):
        try:
            for k in range(3):
                batch = start(server, jsonl([line(server, f"{i}-{k}-{n}", max_tokens=3) for n in range(12)]))
                if (i + k) % 3 == 0:
                    cancel(server, batch)
                assert server.complete("a", max_tokens=1).status == 200
                ended.append(wait(server, batch))
        except Exception as e:  # noqa: BLE001 - told by the main thread
            faults.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not faults, faults[0]
    assert len(ended) == 24 and {b["status"] for b in ended} <= {"completed", "cancelled"}
    for batch in ended:
        results(server, batch)
        assert batch["request_counts"]["total"] == 12
