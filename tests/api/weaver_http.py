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
        until = time.monotonic() + 120
        while envelope["status"] in ("pending", "running"):
            assert time.monotonic() < until, envelope
            envelope = self.get(f"/operations/{envelope['id']}")
        assert envelope["status"] == status, envelope
        return envelope["response"] if status == "done" else envelope

    def run(self, path, body=None, **kw):
        return self.wait(self.post(path, body, **kw))

    def sampler(self, **body):
        """A sampling session with its weights, however long they take."""
        made = self.post(f"/sessions/{self.session}/sampling-sessions", {"sampling_session_seq_id": 1, **body})
        if "sync_operation" not in made:
            return made
        self.wait(made["sync_operation"])
        return made["sampling_session"]

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


# ---- runs ----

def tokens(seed=1, n=24, most=200):
    """Made-up tokens: n + 1 of them."""
    x, out = (seed * 2654435761 + 12345) % 2**32, []
    for _ in range(n + 1):
        x = (x * 1664525 + 1013904223) % 2**32
        out.append(1 + (x >> 8) % (most - 1))
    return out


def datum(seed=1, n=24, **inputs):
    s = tokens(seed, n)
    return {"model_input": {"chunks": [{"type": "encoded_text", "tokens": s[:-1]}]},
            "loss_fn_inputs": {"target_tokens": {"data": s[1:], "dtype": "int64"}, **inputs}}


class Run:
    """A model of a session, driven like the client drives it."""

    def __init__(self, w, base="tiny-llama", **fields):
        self.w, self.seq = w, 0
        self.made = w.post(f"/sessions/{w.session}/models", {"model_seq_id": 1, "base_model": base, **fields}, 201)
        self.id = self.made["id"]
        self.path = f"/models/{self.id}"

    def payload(self, **fields):
        self.seq += 1
        return {"payload": {"model_id": self.id, "seq_id": self.seq, "tensor_transport": "default", **fields}}

    def forward_body(self, data=None, loss="forward_logprob", **config):
        return self.payload(forward_input={"loss_fn": loss, "data": data or [datum()], "loss_fn_config": config})

    def backward_body(self, data=None, loss="cross_entropy", **config):
        return self.payload(forward_backward_input={"loss_fn": loss, "data": data or [datum()], "loss_fn_config": config})

    def adam_body(self, lr=3e-3, **fields):
        return self.payload(adam_params={"learning_rate": lr, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01,
                                         "grad_clip_norm": 1.0, **fields})

    def forward(self, *a, **kw):
        return self.w.run(self.path + "/forward-passes", self.forward_body(*a, **kw))

    def backward(self, *a, **kw):
        return self.w.run(self.path + "/forward-backward-passes", self.backward_body(*a, **kw))

    def step(self, lr=3e-3, **fields):
        return self.w.run(self.path + "/optimizer-steps", self.adam_body(lr, **fields))

    def train(self, n, lr=3e-3, seed=1):
        losses = []
        for _ in range(n):
            losses.append(self.backward([datum(seed)])["metrics"]["loss"])
            self.step(lr)
        return losses

    def logprobs(self, seed=1):
        return self.forward([datum(seed)])["result"]["loss_fn_outputs"][0]["logprobs"]["data"]

    def save(self, type="weight", **fields):
        return self.w.run(self.path + "/checkpoints", {"type": type, **fields})

    def load(self, path, optimizer=False):
        return self.w.run(self.path + "/load", {"path": path, "include_optimizer": optimizer})

    def checkpoints(self):
        return self.w.get(self.path + "/checkpoints")["items"]

    def export(self, **fields):
        return self.w.run(self.path + "/export-sampler", {"seq_id": 1, **fields})["model_path"]
