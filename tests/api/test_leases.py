"""Leases, locks and cancel (spec 3.1, 3.6): what they stop, who is let through, when they end."""
import re
import time

import pytest
from conftest import MODELS
from trainer import Trainer, granted, load, refused, status


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server({"LEASE_MAX_TTL_SECONDS": "100", "LEASE_DEFAULT_TTL_SECONDS": "50"})
    server.other = server.register(MODELS / "tiny-qwen2")["id"]
    return server


def take(server, row=None, status_=201, **fields):
    return granted(server.post(f"/api/models/{row or server.row}/lease",
                               {"holder": "bench", "reason": "a run", **fields}), status_)


def end(server, lease, row=None):
    return server.call("DELETE", f"/api/models/{row or server.row}/lease", headers={"X-miLLM-Lease": lease})


def live(server):
    return granted(server.get(f"/api/models/{server.row}/lease"))["lease"]


def ask_other(server, **headers):
    return server.post("/v1/completions", {"model": "tiny-qwen2", "prompt": "x", "max_tokens": 1},
                       headers={k.replace("_", "-"): v for k, v in headers.items()})


@pytest.mark.parametrize("body,param", [
    ({"reason": "r"}, "holder"), ({"holder": "h"}, "reason"), ({"holder": " ", "reason": "r"}, "holder"),
    ({"holder": 5, "reason": "r"}, "holder"), ({"holder": "h" * 129, "reason": "r"}, "holder"),
    ({"holder": "h", "reason": "r" * 513}, "reason"),
    ({"holder": "h", "reason": "r", "ttl_seconds": 0}, "ttl_seconds"),
    ({"holder": "h", "reason": "r", "ttl_seconds": 101}, "ttl_seconds"),
    ({"holder": "h", "reason": "r", "ttl_seconds": True}, "ttl_seconds"),
    ({"holder": "h", "reason": "r", "ttl_seconds": "5"}, "ttl_seconds"),
])
def test_bounds_are_refused_by_their_field(own, body, param):
    refused(own.post(f"/api/models/{own.row}/lease", body), 400, "INVALID_LEASE_REQUEST", param=param)
    assert live(own) is None


def test_refusals_come_in_their_order(own):
    good = {"holder": "h", "reason": "r"}
    refused(own.post("/api/models/999/lease", {**good, "x": 1}), 422, "VALIDATION_ERROR")
    refused(own.post("/api/models/999/lease", b"{"), 422, "VALIDATION_ERROR")
    refused(own.post("/api/models/999/lease", {"holder": "h"}), 400, "INVALID_LEASE_REQUEST")
    refused(own.post("/api/models/999/lease", good), 404, "MODEL_NOT_FOUND")
    lease = take(own)
    refused(own.post(f"/api/models/{own.other}/lease", good), 409, "MODEL_NOT_RESIDENT", resident_model_id=own.row)
    refused(own.post(f"/api/models/{own.row}/lease", good), 409, "MODEL_LEASED", operation="lease", holder="bench")
    granted(end(own, lease["lease_id"]))


def test_a_lease_has_its_fields_and_its_id_is_told_once(own):
    lease = take(own, holder="  bench ", ttl_seconds=20)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", lease["lease_id"])
    assert (lease["holder"], lease["ttl_seconds"], lease["model_name"]) == ("bench", 20, "tiny-llama")
    shown = live(own)
    assert "lease_id" not in shown and 15 < shown["seconds_remaining"] <= 20
    assert set(shown) == {"model_id", "model_name", "holder", "reason", "acquired_at", "renewed_at", "expires_at",
                          "ttl_seconds", "seconds_remaining"}
    assert granted(own.get(f"/api/models/{own.row}"))["lease"]["holder"] == "bench"
    assert own.get("/api/health/detailed").json()["lease"]["holder"] == "bench"
    assert lease["lease_id"] not in own.log_text()
    renew = lambda id_, **b: own.post(f"/api/models/{own.row}/lease/renew", b, headers={"X-miLLM-Lease": id_} if id_ else {})
    assert granted(renew(lease["lease_id"]))["ttl_seconds"] == 50
    refused(renew(None), 400, "INVALID_LEASE_REQUEST", param="X-miLLM-Lease")
    refused(renew("A" * 43), 404, "LEASE_NOT_FOUND")
    refused(end(own, lease["lease_id"], own.other), 404, "LEASE_NOT_FOUND")
    ended = granted(end(own, lease["lease_id"]))
    assert set(ended) == {"model_id", "model_name", "holder", "reason", "acquired_at", "expires_at", "end_reason",
                          "ended_at"} and ended["end_reason"] == "released"
    refused(renew(lease["lease_id"]), 409, "LEASE_EXPIRED", end_reason="released")


def test_it_stops_what_would_replace_the_model_and_not_its_use(own):
    lease = take(own)
    held = {"X-miLLM-Lease": lease["lease_id"]}
    refused(own.post(f"/api/models/{own.other}/load"), 409, "MODEL_LEASED", operation="load", target_model_id=own.other)
    refused(own.post(f"/api/models/{own.row}/unload"), 409, "MODEL_LEASED", operation="unload")
    refused(load(own, model_id=own.row), 409, "MODEL_LEASED", operation="weights_load", target_model_id=own.row)
    answer = ask_other(own)
    assert answer.status == 409 and answer.json()["error"]["code"] == "model_leased"
    assert answer.json()["error"]["param"] is None
    assert own.complete(max_tokens=1).status == 200
    trainer = Trainer(own)
    trainer.commit(0x0004)
    trainer.write(0x0004)
    trainer.detach()
    granted(own.post("/api/weights/load", {"model_id": own.row},
                     headers={**held, "Authorization": "Bearer trainer-token-for-tests"}))
    assert granted(own.get(f"/api/models/{own.row}/lease"))["last_ended"]["end_reason"] == "model_unloaded"
    refused(end(own, lease["lease_id"]), 409, "LEASE_EXPIRED", end_reason="model_unloaded")


def test_the_own_id_lets_a_load_on_demand_through_and_the_lease_ends(own):
    lease = take(own)
    assert ask_other(own, X_miLLM_Lease="B" * 43).status == 409
    assert ask_other(own, X_miLLM_Lease=lease["lease_id"]).status == 200
    assert live(own) is None
    own.load(own.row)


def test_time_ends_it(own):
    lease = take(own, ttl_seconds=1)
    time.sleep(1.05)
    assert live(own) is None
    refused(end(own, lease["lease_id"]), 409, "LEASE_EXPIRED", end_reason="expired")
    assert granted(own.post(f"/api/models/{own.row}/unload"))["lease"] is None
    own.load(own.row)


def test_a_locked_model_is_not_replaced_on_demand_nor_deleted(own):
    refused(own.post(f"/api/models/{own.other}/lock"), 400, "MODEL_NOT_LOADED")
    refused(own.post("/api/models/999/lock"), 404, "MODEL_NOT_FOUND")
    assert granted(own.post(f"/api/models/{own.row}/lock"))["locked"] is True
    refused(own.post(f"/api/models/{own.row}/lock"), 409, "MODEL_LOCKED", locked_model_id=own.row)
    assert [m["id"] for m in own.get("/v1/models").json()["data"]] == ["tiny-llama"]
    assert own.get("/v1/models/tiny-qwen2").status == 200  # it exists, and cannot be loaded now
    lease = take(own)
    assert ask_other(own).json()["error"]["code"] == "model_leased"  # before the lock
    granted(end(own, lease["lease_id"]))
    answer = ask_other(own)
    assert answer.status == 409 and answer.json()["error"]["code"] == "model_locked"
    granted(own.post(f"/api/models/{own.row}/unload"))
    refused(own.call("DELETE", f"/api/models/{own.row}"), 409, "MODEL_LOCKED")
    assert granted(own.post(f"/api/models/{own.row}/unlock"))["locked"] is False
    assert {m["id"] for m in own.get("/v1/models").json()["data"]} == {"tiny-llama", "tiny-qwen2"}
    own.load(own.row)
    assert ask_other(own).status == 200
    own.load(own.row)


def test_cancel_leaves_a_row_alone_that_is_not_downloaded(own):
    assert granted(own.post(f"/api/models/{own.row}/cancel"))["status"] == "loaded"
    refused(own.post("/api/models/999/cancel"), 404, "MODEL_NOT_FOUND")


def test_a_restart_ends_every_lease(own):
    lease = take(own)
    own.stop()
    own.start()
    own.load(own.row)
    assert live(own) is None
    refused(end(own, lease["lease_id"]), 404, "LEASE_NOT_FOUND")
    assert status(own)["model"]["name"] == "tiny-llama"
