"""Words of the tests about files and batches."""
import json

from conftest import check_error, wait_until

ENDED = ("completed", "failed", "expired", "cancelled")
BOUNDARY = "b0undary"


def form(parts, boundary=BOUNDARY):
    """multipart/form-data of (disposition, bytes) pairs."""
    body = b"".join(f"--{boundary}\r\nContent-Disposition: form-data; {d}\r\n\r\n".encode() + data + b"\r\n"
                    for d, data in parts)
    return body + f"--{boundary}--\r\n".encode()


def post_form(server, body, boundary=BOUNDARY):
    return server.call("POST", "/v1/files", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"})


def upload(server, data, name="lines.jsonl", purpose=b"batch", **kw):
    return post_form(server, form([('name="purpose"', purpose), (f'name="file"; filename="{name}"', data)]), **kw)


def file_of(server, data, **kw):
    answer = upload(server, data, **kw)
    assert answer.status == 200, answer
    return answer.json()


def line(server, custom_id, prompt="hi", url="/v1/completions", **body):
    fields = {"model": server.model, "max_tokens": 2, "temperature": 0}
    if "chat" in url:
        fields["messages"] = [{"role": "user", "content": prompt}]
    elif "embeddings" in url:
        fields = {"model": server.model, "input": prompt}
    else:
        fields["prompt"] = prompt
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**fields, **body}}


def jsonl(lines):
    return b"".join(json.dumps(x).encode() + b"\n" for x in lines)


def create(server, file_id, endpoint="/v1/completions", headers=None, **fields):
    return server.post("/v1/batches", {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h",
                                       **fields}, headers=headers)


def start(server, data, endpoint="/v1/completions", headers=None, **fields):
    answer = create(server, file_of(server, data)["id"], endpoint, headers, **fields)
    assert answer.status == 200, answer
    return answer.json()


def look(server, batch):
    answer = server.get(f"/v1/batches/{batch['id']}")
    assert answer.status == 200, answer
    return answer.json()


def wait(server, batch, until=ENDED):
    return wait_for(server, batch, lambda b: b["status"] in until)


def wait_for(server, batch, met):
    def now():
        seen = look(server, batch)
        return met(seen) and seen
    return batch if met(batch) else wait_until(now, lambda: look(server, batch))


def cancel(server, batch):
    return server.post(f"/v1/batches/{batch['id']}/cancel")


def end_of(server, batch):
    """Cancels it and waits: the next test finds the server idle."""
    cancel(server, batch)
    return wait(server, look(server, batch))


def lines_of(server, file_id):
    if not file_id:
        return []
    answer = server.get(f"/v1/files/{file_id}/content")
    assert answer.status == 200, answer
    assert answer.body.endswith(b"\n")
    return [json.loads(x) for x in answer.body.split(b"\n")[:-1]]


def results(server, batch):
    """(output lines, error lines) of an ended batch, judged by their shape and the counts."""
    good, bad = lines_of(server, batch["output_file_id"]), lines_of(server, batch["error_file_id"])
    counts = batch["request_counts"]
    assert (counts["completed"], counts["failed"], counts["total"]) == (len(good), len(bad), len(good) + len(bad))
    assert len({x["id"] for x in good + bad}) == len(good + bad)
    for x in good:
        assert sorted(x) == ["custom_id", "error", "id", "response"] and x["error"] is None
        assert x["response"]["status_code"] == 200 and x["response"]["millm"]["packed"] is False
        assert x["response"]["request_id"].startswith("req_")
    for x in bad:
        assert sorted(x) == ["custom_id", "error", "id", "line", "response"]
        assert x["error"]["code"] and x["error"]["message"]
        if x["response"]:
            assert sorted(x["response"]["body"]["error"]) == ["code", "message", "param", "type"]
    assert [x["line"] for x in bad] == sorted(x["line"] for x in bad)
    return good, bad


def error_codes(batch):
    return [e["code"] for e in (batch["errors"] or {"data": []})["data"]]


__all__ = [name for name in dir() if not name.startswith("_")] + ["check_error"]
