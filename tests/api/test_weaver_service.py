"""The training API's frame: keys, sessions, catalogue, scope, quota, lists, repeated requests."""
import re
import threading
import uuid

import pytest
from conftest import MODELS
from weaver_http import ENV, KEY, OTHER_KEY, Weaver, error, trace

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server(ENV, model=None)
    server.register(MODELS / "tiny-llama")
    server.register(MODELS / "tiny-qwen2")
    return server


# ---- keys ----

def test_without_keys_every_route_says_how_to_set_them(server):
    w = Weaver(server)
    for method, path in (("POST", "/sessions"), ("GET", "/supported-models"), ("GET", f"/operations/{uuid.uuid4()}")):
        assert "WEAVER_API_KEYS" in error(w.call(method, path, {} if method == "POST" else None), 401, "unauthorized")["message"]


@pytest.mark.parametrize("key", [None, "", "sk-wrong", KEY + "x", KEY[:-1], "team"])
def test_a_wrong_or_missing_key_is_refused(own, key):
    error(Weaver(own, key).call("POST", "/sessions", {}), 401, "unauthorized")


def test_a_bearer_token_is_no_key(own):
    error(Weaver(own, None).call("POST", "/sessions", {}, headers={"Authorization": f"Bearer {KEY}"}), 401, "unauthorized")


def test_the_owner_is_the_identity_of_the_key(own):
    assert Weaver(own).post("/sessions", {})["owner"] == "team"
    assert Weaver(own, OTHER_KEY).post("/sessions", {})["owner"] == "other"


# ---- routes ----

def test_unknown_routes_and_methods(w):
    error(w.call("GET", "/nothing"), 404, "route_not_found")
    error(w.call("GET", "/sessions"), 405, "method_not_allowed")
    assert w.call("GET", "/sessions").header("Allow") == "POST"
    error(w.call("DELETE", "/supported-models"), 405, "method_not_allowed")


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"{\"a\":1,\"a\":2}", b"{\"a\":NaN}", b"\xff"])
def test_a_body_that_is_no_object_is_refused(w, body):
    error(w.call("POST", "/sessions", body), 400, "invalid_request")


# ---- sessions ----

def test_a_session_is_made_read_and_kept(w):
    policy = {"mode": "prefer", "clusters": ["a"]}
    made = w.post("/sessions", {"tags": ["t"], "user_metadata": {"k": 1}, "sdk_version": "1.19.2", "name": "n",
                                "labels": {"a": "b"}, "scheduling_policy": policy}, 201)
    assert UUID.fullmatch(made["id"]) and made["scheduling_policy"] == policy and made["status"] == "active"
    assert made["labels"] == {"a": "b"} and made["organization_id"] and made["project_id"] and made["created_at"].endswith("Z")
    assert w.get(f"/sessions/{made['id']}") == made
    error(w.call("GET", f"/sessions/{uuid.uuid4()}"), 404, "session_not_found")


@pytest.mark.parametrize("body", [{"tags": "x"}, {"user_metadata": []}, {"name": 3}, {"scheduling_policy": {"mode": "now"}},
                                  {"scheduling_policy": []}])
def test_a_bad_session_is_refused(w, body):
    error(w.call("POST", "/sessions", body), 400, "invalid_request")


def test_a_heartbeat_without_a_body_is_answered(w):
    assert w.call("POST", f"/sessions/{w.session}/heartbeat").json() == {"ok": True}
    error(w.call("POST", f"/sessions/{uuid.uuid4()}/heartbeat"), 404, "session_not_found")


def test_metrics_are_taken_and_bad_ones_refused(w):
    path = f"/sessions/{w.session}/metrics"
    good = {"model_id": str(uuid.uuid4()), "name": "reward", "value": 1.5, "step": 3, "occurred_at": "2026-01-01T00:00:00Z",
            "labels": {"split": "eval"}}
    assert w.post(path, {"metrics": [good, {"name": "x", "value": 2}]})["accepted"] == 2
    for bad in ({**good, "value": "1"}, {**good, "step": -1}, {**good, "step": 1.5}, {**good, "name": ""}, {**good, "labels": []}, 5):
        error(w.call("POST", path, {"metrics": [good, bad]}), 400, "invalid_request")
    error(w.call("POST", path, {"metrics": [good] * 1001}), 400, "invalid_request")
    error(w.call("POST", path, {}), 400, "invalid_request")
    error(w.call("POST", f"/sessions/{uuid.uuid4()}/metrics", {"metrics": [good]}), 404, "session_not_found")


# ---- catalogue and scope ----

def test_models_that_can_be_trained_are_listed(w):
    page = w.get("/supported-models?limit=1&offset=0")
    assert page["pagination"] == {"total_count": 2, "limit": 1, "offset": 0} and len(page["items"]) == 1
    names = {m["name"]: m for m in w.get("/supported-models?limit=100")["items"]}
    assert set(names) == {"tiny-llama", "tiny-qwen2"}
    one = names["tiny-llama"]
    assert one["status"] == "healthy" and one["config"]["resource"]["tokenizer"]["path"] == str(MODELS / "tiny-llama")


def test_a_mode_of_the_catalogue_has_all_its_prices(w):
    for model in w.get("/model-catalog")["items"]:
        for mode in model["training_modes"]:
            for what in ("sampling_prefill_tokens", "sampling_cached_prefill_tokens", "sampling_output_tokens", "training_tokens"):
                assert model["prices"][f"{what}:{mode}"] == {"unit": "million_tokens", "unit_price_micros": 0, "version": "0"}


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=x", "offset=-1", "limit=1.5", "limit="])
def test_a_bad_page_is_refused(w, query):
    error(w.call("GET", f"/supported-models?{query}"), 400, "invalid_request")


def test_there_is_one_organization_with_one_project(w):
    org, = w.get("/organizations")
    project, = w.get(f"/organizations/{org['id']}/projects")
    scope = w.get("/scope/resolve")
    assert scope["organization"] == org and scope["project"] == project
    assert w.get(f"/scope/resolve?organization={org['slug']}&project={project['name']}") == scope
    error(w.call("GET", "/scope/resolve?organization=nobody"), 404, "scope_not_found")
    error(w.call("GET", "/scope/resolve?project=nothing"), 404, "scope_not_found")
    error(w.call("GET", f"/organizations/{uuid.uuid4()}/projects"), 404, "scope_not_found")
    assert w.get("/scheduling/options") == {"modes": ["auto"], "can_select": False, "clusters": []}


def test_quota_is_zero_and_requests_are_noted(w):
    balance = w.get("/quota/balance")
    assert balance["available_nanos"] == 0 and balance["available_usd"] == "0"
    made = w.post("/quota/requests", {"amount_usd": "5", "reason": "more"}, 201)
    assert w.get("/quota/requests?limit=1")["items"] == [made]
    error(w.call("POST", "/quota/requests", {"reason": "x"}), 400, "invalid_request")


def test_what_this_server_does_not_have(w):
    assert w.get("/managed-datasets")["items"] == [] and w.get("/deployments?limit=100")["items"] == []
    error(w.call("GET", "/managed-datasets/a/versions/1"), 404, "dataset_not_found")
    error(w.call("GET", f"/deployments/{uuid.uuid4()}"), 404, "deployment_not_found")
    body = error(w.call("POST", f"/checkpoints/{uuid.uuid4()}/deployments", {"name": "d"}), 503, "deployment_unavailable")
    assert body["retryable"] is False


def test_an_unknown_operation_is_404(w):
    error(w.call("GET", f"/operations/{uuid.uuid4()}"), 404, "operation_not_found")
    assert w.get("/operations?limit=5")["items"] == []


# ---- repeated requests ----

def test_a_request_with_the_same_trace_is_done_once(w):
    t = trace()
    a = w.post("/quota/requests", {"amount_usd": "7", "reason": "once"}, trace=t)
    before = w.get("/quota/requests")["pagination"]["total_count"]
    b = w.call("POST", "/quota/requests", {"amount_usd": "7", "reason": "once"}, trace=t)
    assert b.status == 201 and b.json() == a
    assert w.get("/quota/requests")["pagination"]["total_count"] == before
    assert w.post("/quota/requests", {"amount_usd": "7"}, trace=trace())["id"] != a["id"]


def test_a_trace_counts_for_one_route_and_one_owner(own, w):
    t = trace()
    a = w.post("/sessions", {}, trace=t)
    assert w.post("/quota/requests", {"amount_usd": "1"}, trace=t)["id"] != a["id"]
    assert Weaver(own, OTHER_KEY).post("/sessions", {}, trace=t)["owner"] == "other"


def test_two_at_once_with_one_trace_get_one_answer(w):
    t, got = trace(), []
    threads = [threading.Thread(target=lambda: got.append(w.post("/sessions", {}, trace=t)["id"])) for _ in range(8)]
    [x.start() for x in threads]
    [x.join() for x in threads]
    assert len(got) == 8 and len(set(got)) == 1


def test_a_refusal_is_repeated_too(w):
    t = trace()
    first = w.call("POST", "/sessions", {"tags": 1}, trace=t)
    assert (first.status, w.call("POST", "/sessions", {"tags": 1}, trace=t).body) == (400, first.body)


def test_answers_and_sessions_outlive_the_process(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    w, t = Weaver(server).connect(), trace()
    made = w.post("/quota/requests", {"amount_usd": "3"}, trace=t)
    server.stop()
    server.start()
    assert w.get(f"/sessions/{w.session}")["id"] == w.session
    assert w.post("/quota/requests", {"amount_usd": "3"}, trace=t) == made
    assert w.get("/quota/requests")["pagination"]["total_count"] == 1
