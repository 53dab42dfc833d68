"""Checkpoints, their life, loading, exports and what a restart leaves (spec sections 6 and 7)."""
import hashlib
import http.client
import json
import shutil
import signal
import sqlite3
import struct
import threading
import time
import uuid
from urllib.parse import urlsplit

import pytest
from conftest import MODELS, refusing_writes, wait_until
from weaver_http import ENV, KEY, Run, Weaver, error


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server(ENV, model=None)
    server.register(MODELS / "tiny-llama")
    return server


@pytest.fixture(scope="module")
def run(w):
    run = Run(w, lora_config={"rank": 8, "seed": 7})
    run.train(2)
    return run


def directory(own, c):
    return own.state / "weaver" / c["model_id"] / c["id"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- saving ----

@pytest.mark.parametrize("mode", ["lora", "full_ft"])
def test_a_checkpoint_is_a_directory_with_its_record(own, w, mode):
    run = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 1})
    run.train(2, 1e-3)
    c = run.save("weight_and_optimizer", name="step two", ttl_seconds=3600)
    assert c["status"] == "completed" and c["checkpoint_type"] == c["type"] == "weight_and_optimizer" and c["name"] == "step two"
    assert c["path"] == f"weaver://{run.id}/checkpoints/step-two" and c["ttl_seconds"] == 3600 and c["expires_at"] > c["created_at"]
    assert c["train_mlp"] is (True if mode == "lora" else None)
    d = directory(own, c)
    record, expiry = json.loads((d / "checkpoint.json").read_text()), json.loads((d / "expiry.json").read_text())
    assert record["format_version"] == 1 and record["id"] == c["id"] and record["step"] == 2 and record["slug"] == "step-two"
    assert record["base_sha256"] == digest(MODELS / "tiny-llama/model.safetensors") and record["numerics"] in ("exact-1", "bf16-1")
    assert expiry["ttl_seconds"] == 3600 and expiry["expires_at"] == c["expires_at"]
    weights = "adapter_model.safetensors" if mode == "lora" else "model.safetensors"
    assert weights in record["files"] and "optimizer.safetensors" in record["files"]
    assert ("masters.safetensors" in record["files"]) == (mode != "lora")
    assert sorted(p.name for p in d.iterdir()) == sorted([*record["files"], "checkpoint.json", "expiry.json"])
    for name, f in record["files"].items():
        assert (digest(d / name), (d / name).stat().st_size) == (f["sha256"], f["size"])


def test_lifetimes_by_type(run):
    for body, ttl in (({"type": "weight"}, None), ({"type": "weight_and_optimizer"}, None), ({"type": "sampling"}, 3600),
                      ({"type": "sampling", "ttl_seconds": None}, None), ({"type": "weight", "ttl_seconds": 5}, 5)):
        c = run.save(**body)
        assert c["ttl_seconds"] == ttl and (c["expires_at"] is None) == (ttl is None)


@pytest.mark.parametrize("name,slug", [("a b/ä:?*", "a-b"), ("..x--", "x"), ("-.-", None), ("step_1.5", "step_1.5"), ("x" * 128, "x" * 128)])
def test_slugs_are_made_of_names(w, name, slug):
    run = Run(w, lora_config={"rank": 2})
    c = run.save(name=name)
    assert c["name"] == name and c["path"].endswith("/" + (slug or "ckpt-000001"))
    assert run.save(name=name)["path"].endswith("/" + (slug + "-2" if slug else "ckpt-000002"))
    exported = run.export(path=name)
    assert exported.split("/")[-1] == "sampler-" + (slug or "ckpt-000003")
    w.post(run.path + "/terminate")


@pytest.mark.parametrize("body,code", [
    ({"type": "all"}, "invalid_checkpoint_type"), ({}, "invalid_checkpoint_type"), ({"type": "weight", "name": ""}, "invalid_name"),
    ({"type": "weight", "name": "a\nb"}, "invalid_name"), ({"type": "weight", "name": "x" * 129}, "invalid_name"),
    ({"type": "weight", "name": 5}, "invalid_request"), ({"type": "weight", "ttl_seconds": 0}, "invalid_ttl"),
    ({"type": "weight", "ttl_seconds": 1.5}, "invalid_ttl"), ({"type": "weight", "ttl_seconds": "1"}, "invalid_ttl"),
    ({"type": "weight", "ttl_seconds": 10**9}, "invalid_ttl")])
def test_a_bad_save_is_refused_and_leaves_no_row(w, run, body, code):
    before = run.checkpoints()
    error(w.call("POST", run.path + "/checkpoints", body), 400, code)
    assert run.checkpoints() == before


def test_checkpoints_are_listed_for_the_model_and_for_all(w, run):
    c = run.save(name="listed")
    assert c in run.checkpoints()
    page = w.get(f"/checkpoints?model_id={run.id}&limit=2")
    assert page["items"][0] == c and page["pagination"]["total_count"] == len(run.checkpoints())
    assert w.get("/checkpoints?limit=1")["items"][0]["id"] == c["id"]
    error(w.call("GET", f"/models/{uuid.uuid4()}/checkpoints"), 404, "model_not_found")


# ---- lifetime ----

def test_an_expired_checkpoint_is_gone_and_says_so(own, w, run):
    c = run.save(name="short", ttl_seconds=4)
    assert directory(own, c).is_dir()
    wait_until(lambda: not directory(own, c).exists())
    assert c["id"] not in {k["id"] for k in run.checkpoints()}
    for ref in (c["path"], c["id"]):
        error(w.call("POST", run.path + "/load", {"path": ref}), 410, "checkpoint_expired")
    error(w.call("POST", f"/sessions/{w.session}/sampling-sessions", {"model_path": c["path"]}), 410, "checkpoint_expired")
    error(w.call("PATCH", run.path + "/checkpoints/ttl", {"path": c["path"], "ttl_seconds": 5}), 410, "checkpoint_expired")
    assert run.save(name="short")["path"] == c["path"], "the slug is free again"


def test_a_lifetime_can_be_changed(own, w, run):
    c = run.save(name="kept", ttl_seconds=30)
    for ttl in (7200, None):
        got = w.call("PATCH", run.path + "/checkpoints/ttl", {"path": c["path"], "ttl_seconds": ttl}).json()
        expiry = json.loads((directory(own, c) / "expiry.json").read_text())
        assert got["ttl_seconds"] == ttl == expiry["ttl_seconds"] and got["expires_at"] == expiry["expires_at"]
    error(w.call("PATCH", run.path + "/checkpoints/ttl", {"path": c["path"]}), 400, "invalid_ttl")
    error(w.call("PATCH", run.path + "/checkpoints/ttl", {"path": c["path"], "ttl_seconds": 0}), 400, "invalid_ttl")
    error(w.call("PATCH", run.path + "/checkpoints/ttl", {"ttl_seconds": 5}), 400, "invalid_request")
    error(w.call("PATCH", run.path + "/checkpoints/ttl", {"path": f"weaver://{run.id}/checkpoints/none", "ttl_seconds": 5}), 404, "checkpoint_not_found")
    other = Run(w, lora_config={"rank": 2})
    error(w.call("PATCH", other.path + "/checkpoints/ttl", {"path": c["path"], "ttl_seconds": 5}), 404, "checkpoint_not_found")


def test_an_export_without_a_lifetime_of_its_own_ends_with_its_checkpoint(w, run):
    c = run.save(name="followed", ttl_seconds=600)
    own_time = w.run(f"/checkpoints/{c['id']}/export", {"merge_adapter": True, "ttl_seconds": 900})
    follows = w.run(f"/checkpoints/{c['id']}/export", {"ttl_seconds": None})
    assert follows["ttl_seconds"] is None and follows["expires_at"] == c["expires_at"]
    for ttl in (7200, None):
        got = w.call("PATCH", run.path + "/checkpoints/ttl", {"path": c["path"], "ttl_seconds": ttl}).json()
        assert w.get(f"/artifacts/{follows['id']}")["expires_at"] == got["expires_at"]
        assert w.get(f"/artifacts/{own_time['id']}")["expires_at"] == own_time["expires_at"]


def test_an_expired_checkpoint_does_not_keep_its_slug(w, run):
    held = run.save(name="again", ttl_seconds=1)
    wait_until(lambda: held["id"] not in {k["id"] for k in run.checkpoints()})
    fresh = run.save(name="again")  # mostly before the sweep
    assert fresh["path"] == held["path"] and run.load(fresh["path"])["checkpoint_id"] == fresh["id"]


def test_the_tombstone_of_a_checkpoint_lasts_seven_days(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 2})
    old, late = run.save(name="old"), run.save(name="late")
    day = 24 * 3600 * 1000
    for c, days in ((old, 7.01), (late, 6.99)):
        assert w.call("DELETE", f"/checkpoints/{c['id']}").status == 204
        db = sqlite3.connect(tmp_path / "cairn.db", timeout=60)
        db.execute("UPDATE weaver_checkpoints SET deleted_ms = deleted_ms - ? WHERE id = ?", (int(days * day), c["id"]))
        db.commit()
        db.close()
    wait_until(lambda: w.call("POST", run.path + "/load", {"path": old["path"]}).status == 404)
    error(w.call("POST", run.path + "/load", {"path": late["path"]}), 410, "checkpoint_expired")
    server.stop()


def test_without_a_readable_expiry_nothing_is_deleted(own, w, run):
    c = run.save(name="unreadable", ttl_seconds=4)
    (directory(own, c) / "expiry.json").write_text("{")
    time.sleep(7)
    assert (directory(own, c) / "checkpoint.json").exists()


def test_a_checkpoint_is_deleted_by_hand(own, w, run):
    c = run.save(name="by-hand")
    assert w.call("DELETE", f"/checkpoints/{c['id']}").status == 204
    assert not directory(own, c).exists()
    error(w.call("POST", run.path + "/load", {"path": c["path"]}), 410, "checkpoint_expired")
    error(w.call("DELETE", f"/checkpoints/{uuid.uuid4()}"), 404, "checkpoint_not_found")


# ---- loading ----

def test_a_load_that_cannot_begin_lets_its_checkpoint_go(own, w, run):
    c = run.save(name="let-go")
    with refusing_writes(own, "INSERT ON weaver_operations WHEN NEW.type = 'load_checkpoint'"):
        error(w.call("POST", run.path + "/load", {"path": c["path"]}), 500, "internal_error")
    assert w.call("DELETE", f"/checkpoints/{c['id']}").status == 204


@pytest.mark.parametrize("mode", ["lora", "full_ft"])
def test_a_load_restores_every_bit_and_the_optimizer_goes_on_exactly(w, mode):
    run = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 3})
    run.train(3, 1e-3)
    c, at = run.save("weight_and_optimizer", name="full"), run.logprobs()
    straight, end = run.train(3, 1e-3), run.logprobs()
    got = run.load(c["path"], True)
    assert got == {"path": c["path"], "checkpoint_id": c["id"], "include_optimizer": True, "step": 3}
    assert run.logprobs() == at
    assert run.train(3, 1e-3) == straight and run.logprobs() == end
    assert run.load(c["id"])["step"] == 0 and run.logprobs() == at
    fresh = run.train(3, 1e-3)
    assert fresh[0] == straight[0] and fresh[1:] != straight[1:]
    other = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 99})
    other.load(c["path"], True)
    assert other.train(3, 1e-3) == straight


def test_what_cannot_be_loaded_is_refused_when_it_is_asked(w, run):
    c = run.save(name="plain")
    post = lambda r, **body: w.call("POST", r.path + "/load", body)
    error(post(run, path=c["path"], include_optimizer=True), 409, "optimizer_state_missing")
    error(post(Run(w, lora_config={"rank": 4}), path=c["path"]), 409, "checkpoint_incompatible")
    error(post(Run(w, lora_config={"rank": 8, "train_mlp": False}), path=c["path"]), 409, "checkpoint_incompatible")
    error(post(Run(w, training_mode="full_ft"), path=c["path"]), 409, "checkpoint_incompatible")
    for bad in ("", "garbage", "weaver://", "weaver://x/../../etc/passwd", str(uuid.uuid4()), f"weaver://{run.id}/checkpoints/no",
                f"weaver://{run.id}/checkpoints/plain/more"):
        error(post(run, path=bad), 404, "checkpoint_not_found")
    error(post(run), 404, "checkpoint_not_found")
    error(post(run, path=5), 400, "invalid_request")


def test_a_damaged_file_is_found_before_the_run_changes(own, w, run):
    before = run.logprobs()
    for file in ("adapter_model.safetensors", "checkpoint.json"):
        c = run.save(name="damaged")
        path = directory(own, c) / file
        raw = bytearray(path.read_bytes())
        raw[-9] ^= 1
        path.write_bytes(raw[:-20] if file.endswith("json") else raw)
        end = w.wait(w.post(run.path + "/load", {"path": c["path"]}), "error")
        assert end["error"] == "checkpoint_corrupt"
        error(w.call("POST", f"/sessions/{w.session}/sampling-sessions", {"model_path": c["path"]}), 409, "checkpoint_corrupt")
    assert run.logprobs() == before


def test_a_load_keeps_its_place_among_the_calls(w):
    run = Run(w, lora_config={"rank": 4, "seed": 3})
    run.train(1)
    c, at = run.save(), run.logprobs()
    ops = [w.post(run.path + "/forward-backward-passes", run.backward_body()), w.post(run.path + "/optimizer-steps", run.adam_body()),
           w.post(run.path + "/load", {"path": c["path"]}), w.post(run.path + "/forward-passes", run.forward_body())]
    got = [w.wait(o) for o in ops]
    assert got[-1]["result"]["loss_fn_outputs"][0]["logprobs"]["data"] == at


# ---- exports ----

def fetch(url, headers=None):
    at = urlsplit(url)
    conn = http.client.HTTPConnection(at.hostname, at.port, timeout=60)
    try:
        conn.request("GET", f"{at.path}?{at.query}", headers=headers or {})
        got = conn.getresponse()
        return got.status, dict((k.lower(), v) for k, v in got.getheaders()), got.read()
    finally:
        conn.close()


def download(w, artifact):
    out = {}
    for f in w.get(f"/artifacts/{artifact['id']}/download")["files"]:
        status, headers, body = fetch(f["url"])
        assert status == 200 and headers["accept-ranges"] == "bytes" and int(headers["content-length"]) == f["size"] == len(body)
        assert hashlib.sha256(body).hexdigest() == f["sha256"] and "content-encoding" not in headers
        out[f["name"]] = body
    return out


def read_safetensors(raw):
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}


def test_an_adapter_is_exported_once_and_again_by_force(own, w, run):
    c = run.save(name="export")
    a = w.run(f"/checkpoints/{c['id']}/export", {"format": "huggingface", "merge_adapter": False, "ttl_seconds": 604800})
    assert a["kind"] == "hf_adapter" and a["status"] == "completed" and a["uri"] == c["path"] + "/artifacts/hf_adapter"
    answer = w.call("POST", f"/checkpoints/{c['id']}/export", {})
    assert answer.status == 200 and answer.json()["id"] == a["id"] and answer.json()["kind"] == "hf_adapter"
    b = w.run(f"/checkpoints/{c['id']}/export", {"force": True})
    assert b["id"] != a["id"] and [x["id"] for x in w.get(f"/checkpoints/{c['id']}/artifacts")["items"]] == [b["id"]]
    files = download(w, b)
    assert set(files) == {"adapter_model.safetensors", "adapter_config.json"} == {f["name"] for f in b["manifest"]["files"]}
    config = json.loads(files["adapter_config.json"])
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 8, 32)
    assert any(".lora_A." in k for k in read_safetensors(files["adapter_model.safetensors"]))
    w.call("DELETE", f"/checkpoints/{c['id']}")
    assert set(download(w, b)) == set(files), "an artifact outlives its checkpoint"


def test_an_adapter_names_its_base_as_others_know_it(own, w):
    limited = Run(w, base="tiny-llama:64", lora_config={"rank": 2})
    c = limited.save()
    config = json.loads((directory(own, c) / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny-llama" and limited.made["base_model"] == "tiny-llama:64"
    row = own.register(MODELS / "tiny-qwen2", custom_name="named:64")["id"]
    named = Run(w, base="named:64", lora_config={"rank": 2})
    config = json.loads((directory(own, named.save()) / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "named:64"
    for run in (limited, named):
        w.post(run.path + "/terminate")
    assert own.call("DELETE", f"/api/models/{row}").status == 200


def test_a_merged_model_scores_like_base_and_adapter(own, w, run, tmp_path, make_server):
    c = run.save(name="merge")
    files = download(w, w.run(f"/checkpoints/{c['id']}/export", {"merge_adapter": True}))
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= set(files)
    merged = tmp_path / "merged"
    merged.mkdir()
    for name, body in files.items():
        (merged / name).write_bytes(body)
    base = read_safetensors((MODELS / "tiny-llama/model.safetensors").read_bytes())
    tensors = read_safetensors(files["model.safetensors"])
    assert set(base) <= set(tensors)
    norm = next(k for k in base if "norm" in k)
    assert tensors[norm] == base[norm] and any(tensors[k] != base[k] for k in base)
    own.register(merged)
    other = Run(w, base="merged", lora_config={"rank": 2})
    assert max(abs(x - y) for x, y in zip(other.logprobs(), run.logprobs())) < 0.2, "BF16 rounding of the sum"


def test_a_full_model_is_exported_whole(w):
    run = Run(w, training_mode="full_ft")
    run.train(1, 1e-3)
    a = w.run(run.path + "/export-hf", {"format": "huggingface", "ttl_seconds": None})
    assert a["kind"] == "hf_model" and a["expires_at"] is None
    files = download(w, a)
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(files)
    error(w.call("POST", f"/checkpoints/{a['checkpoint_id']}/export", {"merge_adapter": True}), 400, "merge_adapter_unsupported")
    error(w.call("POST", f"/checkpoints/{a['checkpoint_id']}/export", {"format": "gguf"}), 400, "unsupported_option")
    error(w.call("POST", f"/checkpoints/{uuid.uuid4()}/export", {}), 404, "checkpoint_not_found")


def test_addresses_are_signed_and_take_ranges(w, run):
    c = run.save(name="ranges")
    a = w.run(f"/checkpoints/{c['id']}/export", {})
    f = next(f for f in w.get(f"/artifacts/{a['id']}/download")["files"] if f["name"] == "adapter_model.safetensors")
    whole = fetch(f["url"])[2]
    for text, want in (("bytes=5-", whole[5:]), ("bytes=5-9", whole[5:10]), ("bytes=-7", whole[-7:]), (f"bytes=5-{10**12}", whole[5:]),
                       (f"bytes=-{10**12}", whole), (f"bytes=-{2**63}", whole)):
        status, headers, body = fetch(f["url"], {"Range": text})
        assert status == 206 and body == want
        assert headers["content-range"].split("/")[1] == str(len(whole))
    assert fetch(f["url"], {"Range": f"bytes={len(whole)}-"})[0] == 416
    for text in ("lines=1-", "bytes=x", "bytes=9-5", "bytes=0-1,4-5"):
        assert fetch(f["url"], {"Range": text})[2] == whole
    for url in (f["url"][:-2], f["url"].split("&signature")[0], f["url"].replace("expires=", "expires=9"),
                f["url"].replace("adapter_model.safetensors", "adapter_config.json"),
                f["url"].replace(a["id"], str(uuid.uuid4()))):
        assert fetch(url)[0] == 403
    error(w.call("GET", f"/artifacts/{uuid.uuid4()}/download"), 404, "artifact_not_found")


# ---- restarts ----

@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_checkpoints_outlive_the_process_and_a_load_revives_the_run(make_server, tmp_path, how):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 4, "seed": 3})
    run.train(3)
    c, at = run.save("weight_and_optimizer", name="keep"), run.logprobs()
    path = run.export(path="sampler", ttl_seconds=600)
    sampler = w.sampler(model_path=path)
    run.seq = 70
    waiting = w.post(run.path + "/forward-passes", run.forward_body())  # waits for its predecessor
    straight = None
    server.stop(how)
    server.start()
    w.server = server
    end = w.get(f"/operations/{waiting['id']}")
    if how == signal.SIGKILL:
        assert end["status"] == "error" and end["error"] == "server_restarted" and end["retryable"] is True
    run.seq = 0
    body = error(w.call("POST", run.path + "/forward-passes", run.forward_body()), 409, "model_lost")
    assert body["details"]["last_checkpoint"] == path
    error(w.call("POST", run.path + "/checkpoints", {"type": "weight"}), 409, "model_lost")
    assert w.get(run.path)["status"] == "lost" and c in run.checkpoints()
    run.load(c["path"], True)
    assert run.logprobs() == at and w.get(run.path)["status"] == "active"
    straight = run.train(2)
    other = Run(w, lora_config={"rank": 4, "seed": 50})
    other.load(c["id"], True)
    assert other.train(2) == straight
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}
    got = w.run(f"/sampling-sessions/{sampler['id']}/logprobs", {"prompt": prompt})
    assert len(got["result"]["prompt_logprobs"]) == 3


def test_a_load_does_not_bring_a_run_back_that_is_terminated_at_the_same_time(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    runs = [Run(w, lora_config={"rank": 1, "seed": 3}) for _ in range(16)]
    saved = [r.save()["path"] for r in runs]
    server.stop()
    server.start()
    w.server = server
    for run, path in zip(runs, saved):
        loading = threading.Thread(target=w.call, args=("POST", run.path + "/load", {"path": path}))
        loading.start()
        w.post(run.path + "/terminate", {})
        loading.join()
        assert w.get(run.path)["status"] == "terminated"
        error(w.call("POST", run.path + "/load", {"path": path}), 409, "model_terminated")


def test_an_adapter_is_refused_beside_another_base(make_server, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(MODELS / "tiny-llama", base)
    server = make_server(ENV, model=None, state=tmp_path / "state")
    server.register(base)
    w = Weaver(server).connect()
    run, whole = Run(w, "base", lora_config={"rank": 4, "seed": 3}), Run(w, "base", training_mode="full_ft")
    run.train(1)
    c, path, all_weights = run.save(), run.export(path="sampler"), whole.save()
    sampler = w.sampler(model_path=path)
    trained_beside = digest(base / "model.safetensors")
    server.stop()
    raw = bytearray((base / "model.safetensors").read_bytes())
    raw[-2] ^= 1  # the last bit of a mantissa
    (base / "model.safetensors").write_bytes(raw)
    server.start()
    w.server = server
    sample = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}}
    for route, body in ((run.path + "/load", {"path": c["path"]}), (f"/sessions/{w.session}/sampling-sessions", {"model_path": path}),
                        (f"/sampling-sessions/{sampler['id']}/logprobs", sample)):
        refused = error(w.call("POST", route, body), 409, "checkpoint_incompatible")
        here = digest(base / "model.safetensors")
        assert refused["details"]["differs"] == "base_sha256"
        assert refused["details"]["checkpoint"] == trained_beside and refused["details"]["server"] == here
        assert trained_beside[:16] in refused["message"] and here[:16] in refused["message"]
    end = w.wait(w.post(f"/checkpoints/{c['id']}/export", {"format": "huggingface", "merge_adapter": True}), "error")
    assert end["error"] == "checkpoint_incompatible"
    assert whole.load(all_weights["path"])["checkpoint_id"] == all_weights["id"]  # needs no base
    again = Run(w, "base", lora_config={"rank": 4, "seed": 3})
    again.train(1)
    again.load(again.save()["path"])


def test_a_pending_row_is_finished_or_dropped_by_the_next_start(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, lora_config={"rank": 2})
    op = w.post(run.path + "/checkpoints", {"type": "weight", "name": "whole"})
    whole, torn = w.wait(op), run.save(name="torn")
    server.stop(signal.SIGKILL)
    # as if the process had died between the rename and the row
    db = sqlite3.connect(tmp_path / "cairn.db")
    db.execute("UPDATE weaver_checkpoints SET status = 'pending', step = 0")
    db.execute("UPDATE weaver_operations SET status = 'pending', response = NULL WHERE id = ?", (op["id"],))
    db.commit()
    db.close()
    (directory(server, torn) / "adapter_model.safetensors").unlink()
    (tmp_path / "weaver" / run.id / ".tmp-left").mkdir()
    server.start()
    w.server = server
    assert [c["path"] for c in run.checkpoints()] == [whole["path"]]
    end = w.get(f"/operations/{op['id']}")
    assert end["status"] == "done" and end["response"]["path"] == whole["path"] and end["response"]["created_at"] == whole["created_at"]
    assert not (tmp_path / "weaver" / run.id / ".tmp-left").exists()
    error(w.call("POST", run.path + "/load", {"path": torn["path"]}), 404, "checkpoint_not_found")


def test_a_full_disk_fails_the_save_and_leaves_no_row(own, w, run, monkeypatch):
    blocked = own.state / "weaver" / run.id
    before = run.checkpoints()
    mode = blocked.stat().st_mode
    moved = blocked.with_name(blocked.name + "-moved")
    blocked.rename(moved)
    blocked.write_text("a file where the directory should be")
    try:
        end = w.wait(w.post(run.path + "/checkpoints", {"type": "weight", "name": "no-room"}), "error")
        assert end["error"] and end["error_message"]
    finally:
        blocked.unlink()
        moved.rename(blocked)
    assert mode == blocked.stat().st_mode and run.checkpoints() == before
    assert shutil.disk_usage(own.state) and run.save(name="no-room")["path"].endswith("/no-room") and KEY
