"""Words of the training API over plain HTTP: one client with a key, envelopes, errors."""
import json
import time
import uuid

KEY = "sk-weaver-test"
OTHER_KEY = "sk-weaver-other"
ENV = {"WEAVER_API_KEYS": f"team:{KEY},other:{OTHER_KEY}"}


class Weaver:
    def __init__(self, server, key=KEY):
        self.server, self.key = server, key
        self.session = None

    def call(self, method, path, body=None, trace=None, headers=None, **kw):
        head = {"X-WEAVER-API-KEY": self.key} if self.key else {}
        if trace:
            head["traceparent"] = trace
        return self.server.call(method, "/api/v1" + path, body, headers={**head, **(headers or {})}, **kw)

    def get(self, path, status=200):
        answer = self.call("GET", path)
        assert answer.status == status, answer
        return answer.json()

    def post(self, path, body=None, status=None, **kw):
        answer = self.call("POST", path, body, **kw)
        assert answer.status == status if status else answer.status < 300, answer
        return answer.json()

    def connect(self):
        self.session = self.post("/sessions", {"tags": ["test"], "sdk_version": "1.19.2"}, 201)["id"]
        return self

    def wait(self, envelope, status="done"):
        """The response of an operation (or its error fields)."""
        until = time.monotonic() + 60
        while envelope["status"] in ("pending", "running"):
            assert time.monotonic() < until, envelope
            envelope = self.get(f"/operations/{envelope['id']}")
        assert envelope["status"] == status, envelope
        return envelope["response"] if status == "done" else envelope

    def run(self, path, body=None, **kw):
        return self.wait(self.post(path, body, **kw))

    def refused(self, method, path, body, status, code):
        answer = self.call(method, path, body)
        return error(answer, status, code)


def trace():
    return f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-03"


def error(answer, status, code):
    assert answer.status == status, answer
    body = answer.json()
    assert body["error"] == code, body
    assert isinstance(body["retryable"], bool) and len(body["message"]) > 10 and isinstance(body["details"], dict)
    assert body["request_id"] == answer.header("X-Request-ID")
    return body


def dumps(o):
    return json.dumps(o).encode()
