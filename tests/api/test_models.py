"""The catalogue: register, list, load, unload, delete (spec 3.1 to 3.4), and what stops a start (9)."""
import os
import shutil
import subprocess
import threading
import time

import pytest
from conftest import MODELS, ROOT
from trainer import Trainer, granted, load, refused, status

PROGRAM = os.environ.get("CAIRN", str(ROOT / "build/cairn"))


@pytest.fixture(scope="module")
def own(make_server, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    server = make_server({"MODEL_CACHE_DIR": str(cache)})
    server.cache = cache
    return server


def test_a_row_has_its_fields_and_more_while_loaded(own):
    row = granted(own.get(f"/api/models/{own.row}"))
    assert row["status"] == "loaded" and row["served_name"] == "tiny-llama" and row["checkpoint"] is False
    assert row["dtype"] == "torch.bfloat16" and row["device"] == "cpu" and row["num_parameters"] > 0
    assert row["architecture"] == "LlamaForCausalLM" and row["created_at"].endswith("Z")
    assert [r["id"] for r in granted(own.get("/api/models"))][-1] == own.row


def test_a_model_that_is_deleted_while_it_is_loaded_is_gone_or_served_never_both(own, tmp_path):
    shutil.copytree(MODELS / "tiny-qwen2", tmp_path / "racer")
    for turn in range(16):
        row = own.register(tmp_path / "racer")["id"]
        loading = threading.Thread(target=own.post, args=(f"/api/models/{row}/load",))
        loading.start()
        time.sleep(turn * 0.0005)
        deleted = own.call("DELETE", f"/api/models/{row}").status == 200
        loading.join()
        if not deleted:
            own.settled(row)
        own.load(own.row) if status(own)["model"]["name"] != own.model else None  # waits for what still loads
        assert (own.get(f"/api/models/{row}").status == 404) == deleted
        if not deleted:
            granted(own.call("DELETE", f"/api/models/{row}"))


@pytest.mark.parametrize("body,status_,code", [
    ({}, 422, "VALIDATION_ERROR"),
    ({"source": "local"}, 422, "VALIDATION_ERROR"),
    ({"source": "other", "local_path": "/x"}, 422, "VALIDATION_ERROR"),
    ({"source": "local", "local_path": "/x", "colour": 1}, 422, "VALIDATION_ERROR"),
    ({"source": "huggingface", "repo_id": "no-slash"}, 422, "VALIDATION_ERROR"),
    ({"source": "huggingface", "repo_id": "org/.."}, 422, "VALIDATION_ERROR"),
    ({"source": "local", "local_path": "relative"}, 400, "INVALID_LOCAL_PATH"),
    ({"source": "local", "local_path": "/nonexistent"}, 400, "INVALID_LOCAL_PATH"),
    ({"source": "local", "local_path": "/proc/self"}, 400, "INVALID_LOCAL_PATH"),
    ({"source": "local", "local_path": "/etc"}, 400, "INVALID_LOCAL_PATH"),
    ({"source": "huggingface", "repo_id": "org/absent"}, 404, "REPO_NOT_FOUND"),
    ({"source": "local", "local_path": str(MODELS / "tiny-llama")}, 409, "MODEL_ALREADY_EXISTS"),
    ({"source": "local", "local_path": str(MODELS / "tiny-qwen3"), "custom_name": "tiny-llama"}, 409,
     "MODEL_ALREADY_EXISTS"),
])
def test_what_cannot_be_registered(own, body, status_, code):
    count = len(granted(own.get("/api/models")))
    refused(own.post("/api/models", body), status_, code)
    assert len(granted(own.get("/api/models"))) == count


@pytest.mark.parametrize("layout", ["flat", "hub"])
def test_a_repository_is_found_in_the_cache_and_its_delete_removes_it(own, layout):
    repo = f"org/net-{layout}"
    if layout == "flat":
        home = own.cache / f"huggingface/org--net-{layout}--FP16"
    else:
        top = own.cache / f"models--org--net-{layout}"
        home = top / "snapshots/abc123"
        (top / "refs").mkdir(parents=True)
        (top / "refs/main").write_text("abc123\n")
    shutil.copytree(MODELS / "tiny-llama", home)
    row = granted(own.post("/api/models", {"source": "huggingface", "repo_id": repo}), 202)
    assert (row["name"], row["status"], row["repo_id"]) == (f"net-{layout}", "ready", repo)
    own.load(row["id"])
    assert status(own)["model"]["base_model"] == repo  # the lineage root is the repository
    refused(own.call("DELETE", f"/api/models/{row['id']}"), 409, "MODEL_BUSY", reason="loaded")
    own.load(own.row)
    assert granted(own.call("DELETE", f"/api/models/{row['id']}")) is None
    assert not home.exists()
    refused(own.get(f"/api/models/{row['id']}"), 404, "MODEL_NOT_FOUND")


def test_the_last_snapshot_of_a_repository_takes_its_blobs_with_it(own):
    top, rows = own.cache / "models--org--shared", []
    (top / "blobs").mkdir(parents=True)
    for file in (MODELS / "tiny-llama").iterdir():
        shutil.copy(file, top / "blobs" / f"blob-of-{file.name}")
    for revision, quantization in (("aaa", "FP16"), ("bbb", "FP32")):
        home = top / "snapshots" / revision
        home.mkdir(parents=True)
        for blob in (top / "blobs").iterdir():
            (home / blob.name.removeprefix("blob-of-")).symlink_to(f"../../blobs/{blob.name}")
        rows.append(granted(own.post("/api/models", {"source": "huggingface", "repo_id": "org/shared", "revision": revision,
                                                     "custom_name": f"shared-{revision}", "quantization": quantization}), 202))
    granted(own.call("DELETE", f"/api/models/{rows[0]['id']}"))
    own.load(rows[1]["id"])
    own.load(own.row)
    assert not (top / "snapshots/aaa").exists()
    granted(own.call("DELETE", f"/api/models/{rows[1]['id']}"))
    assert not top.exists() and own.cache.exists()


def test_a_preview_tells_what_a_registration_would_find_and_changes_nothing(own, tmp_path):
    before = granted(own.get("/api/models"))
    seen = granted(own.post("/api/models/preview", {"source": "local", "local_path": str(MODELS / "tiny-llama")}))
    assert seen["existing_model_id"] == own.row and seen["loadable"] is True and seen["problem"] is None
    loaded = granted(own.get(f"/api/models/{own.row}"))
    assert (seen["name"], seen["architecture"], seen["params"]) == ("tiny-llama", "LlamaForCausalLM", loaded["params"])
    assert (seen["model_type"], seen["dtype"], seen["context_length"], seen["vocab_size"]) == ("llama", "BF16", 512, 512)
    assert (seen["num_layers"], seen["hidden_size"], seen["has_chat_template"]) == (3, 64, True)
    assert seen["disk_size_mb"] == loaded["disk_size_mb"] == seen["estimated_memory_mb"] and seen["fits_memory"] is True
    assert seen["kv_bytes_per_token"] == 3 * 2 * (2 * 16) * 4 and seen["supports_embeddings"] is loaded["supports_embeddings"] is True
    shutil.copytree(MODELS / "tiny-qwen3", tmp_path / "m")
    (tmp_path / "m/model.safetensors").unlink()
    seen = granted(own.post("/api/models/preview", {"source": "local", "local_path": str(tmp_path / "m")}))
    assert seen["loadable"] is False and seen["problem"]["reason"] and len(seen["problem"]["message"]) > 10
    assert seen["existing_model_id"] is None and seen["disk_size_mb"] is None and seen["context_length"] is None
    refused(own.post("/api/models/preview", {"repo_id": "org/absent"}), 404, "REPO_NOT_FOUND")
    refused(own.post("/api/models/preview", {}), 422, "VALIDATION_ERROR")
    refused(own.post("/api/models/preview", {"repo_id": "org/x", "colour": 1}), 422, "VALIDATION_ERROR")
    refused(own.post("/api/models/preview", {"source": "local", "local_path": "/etc"}), 400, "INVALID_LOCAL_PATH")
    assert granted(own.get("/api/models")) == before


def test_a_preview_finds_the_cache(own):
    home = own.cache / "models--org--seen/snapshots/r1"
    shutil.copytree(MODELS / "tiny-qwen3", home)
    refused(own.post("/api/models/preview", {"repo_id": "org/seen"}), 404, "REPO_NOT_FOUND")  # no branch main
    seen = granted(own.post("/api/models/preview", {"repo_id": "org/seen", "revision": "r1", "hf_token": "secret-of-a-user"}))
    assert (seen["name"], seen["repo_id"], seen["revision"], seen["local_path"]) == ("seen", "org/seen", "r1", str(home))
    assert seen["model_type"] == "qwen3" and "secret-of-a-user" not in own.log_text()


def test_ids_that_are_no_ids(own):
    for bad in ("0", "-1", "x", "1.5"):
        refused(own.get(f"/api/models/{bad}"), 422, "VALIDATION_ERROR")
    refused(own.get("/api/models/999999"), 404, "MODEL_NOT_FOUND")
    assert own.get("/api/models/1/lock").status in (404, 405)


def test_a_directory_that_cannot_be_served_ends_in_error_and_the_old_model_stays(own, tmp_path):
    shutil.copytree(MODELS / "tiny-llama", tmp_path / "broken")
    (tmp_path / "broken/model.safetensors").write_bytes(b"\0" * 100)
    row = own.register(tmp_path / "broken")
    assert own.post(f"/api/models/{row['id']}/load").status == 202
    after = own.settled(row["id"])
    assert after["status"] == "error" and after["error_message"]
    assert own.complete(max_tokens=1).status == 200
    granted(own.call("DELETE", f"/api/models/{row['id']}"))
    assert (tmp_path / "broken").exists()  # a local directory is never deleted


def test_a_quantization_that_is_not_computed_is_refused_when_it_is_loaded(own):
    row = own.register(MODELS / "tiny-qwen2", quantization="Q4", custom_name="quantized")
    for _ in range(2):
        refused(own.post(f"/api/models/{row['id']}/load"), 400, "UNSUPPORTED_QUANTIZATION", quantization="Q4")
    answer = own.post("/v1/completions", {"model": "quantized", "prompt": "x", "max_tokens": 1})
    assert (answer.status, answer.json()["error"]["code"]) == (400, "unsupported_quantization")
    assert granted(own.get(f"/api/models/{row['id']}"))["status"] == "ready"
    granted(own.call("DELETE", f"/api/models/{row['id']}"))


def test_load_unload_and_load_again(own):
    refused(own.post(f"/api/models/{own.row}/load"), 400, "MODEL_ALREADY_LOADED")
    assert granted(own.post(f"/api/models/{own.row}/unload"))["status"] == "ready"
    refused(own.post(f"/api/models/{own.row}/unload"), 400, "MODEL_NOT_LOADED")
    assert status(own)["model"] is None
    refused(own.get("/api/weights/lineage"), 400, "MODEL_NOT_LOADED")
    assert own.complete(max_tokens=1).status == 200  # loaded on demand, by name
    assert status(own)["model"]["name"] == "tiny-llama"


def test_another_row_is_loaded_on_demand_unless_commits_are_unsaved(own):
    other = own.register(MODELS / "tiny-qwen2")
    ask = lambda name, **headers: own.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1},
                                           headers={k.replace("_", "-"): v for k, v in headers.items()})
    assert ask("tiny-qwen2", X_miLLM_Load_Policy="refuse").json()["error"]["code"] == "model_not_resident"
    holder = Trainer(own)
    holder.commit(0x0004)
    holder.detach()
    answer = ask("tiny-qwen2")
    assert answer.status == 409 and answer.json()["error"]["code"] == "weights_unsaved"
    refused(own.post(f"/api/models/{own.row}/load"), 400, "MODEL_ALREADY_LOADED")
    granted(load(own, model_id=own.row))
    assert ask("tiny-qwen2").json()["model"] == "tiny-qwen2"
    names = [m["id"] for m in own.get("/v1/models").json()["data"]]
    assert {"tiny-qwen2", "tiny-llama"} <= set(names)
    own.load(own.row)
    granted(own.call("DELETE", f"/api/models/{other['id']}"))


def test_a_deliberate_load_or_unload_discards_commits_and_logs_how_many(own):
    other = own.register(MODELS / "tiny-qwen2")
    leave = (lambda: granted(own.post(f"/api/models/{own.row}/unload")), lambda: own.load(other["id"]))
    for i in range(2):
        holder = Trainer(own)
        for _ in range(i + 1):
            holder.commit(0x0004)
        holder.detach()
        leave[i]()
        assert f'weights_discarded model="tiny-llama" commits={i + 1}' in own.log_text()
        own.load(own.row)
    granted(own.call("DELETE", f"/api/models/{other['id']}"))


def test_a_hold_that_is_forgotten_ends_by_its_timer(make_server):
    server = make_server({"WEIGHTS_QUIESCE_MAX_HOLD_S": "0.3"})
    holder = Trainer(server)
    assert status(server)["hold_timeouts"] == 0
    holder.do("quiesce")
    assert server.complete(max_tokens=1).status == 200  # held until the timer opens
    seen = status(server)
    assert (seen["hold_timeouts"], seen["serving"], seen["hold"]) == (1, "serving", None)
    assert '"operation":"weights_hold_timeout"' in server.log_text().replace('": "', '":"')
    refused(holder.call("commit-begin"), 409, "NOT_QUIESCED")
    holder.detach()


def test_a_database_url_is_ignored_with_a_warning(make_server):
    server = make_server({"DATABASE_URL": "postgresql://user:secret-of-a-database@nowhere/db"}, model=None)
    assert "DATABASE_URL is ignored" in server.log_text() and "secret-of-a-database" not in server.log_text()


def test_health_tells_what_is_going_on(own):
    for path in ("/api/health", "/api/health/version", "/api/health/ready"):
        body = own.get(path).json()
        assert sorted(body) == ["status", "timestamp", "uptime_seconds", "version"], body
    detailed = own.get("/api/health/detailed").json()
    assert detailed["inference"]["queue_max_concurrent"] == 8 and detailed["lease"] is None
    assert detailed["weights"]["weights_state"] == "clean"


def test_rows_outlive_the_server_and_residency_does_not(make_server, tmp_path):
    server = make_server(state=tmp_path / "state")
    assert server.stop() == 0
    server.start()
    row = granted(server.get(f"/api/models/{server.row}"))
    assert row["status"] == "ready" and status(server)["model"] is None
    assert server.stop() == 0


def test_auto_load_takes_a_row_a_directory_or_a_checkpoint(make_server, tmp_path):
    server = make_server(args=["--model", str(MODELS / "tiny-llama")], model=None, state=tmp_path / "state")
    assert status(server)["model"]["name"] == "tiny-llama"
    holder = Trainer(server)
    saved = granted(holder.save("auto", 1), 201)
    server.stop()
    server.args, server.env["AUTO_LOAD_MODEL"] = [], saved["name"]
    server.start()
    assert status(server)["model"]["name"] == saved["name"]
    row = status(server)["model"]["row_id"]
    server.stop()
    del server.env["AUTO_LOAD_MODEL"]
    for what in (str(server.checkpoints / saved["path"]), str(row)):  # its directory, its row
        server.args = ["--model", what]
        server.start()
        assert status(server)["model"]["name"] == saved["name"]
        server.stop()
    server.args = []
    server.env["AUTO_LOAD_MODEL"] = "nobody"
    server.start()
    assert status(server)["model"] is None and "auto_load_failed" in server.log_text()
    server.stop()


def test_two_servers_do_not_share_a_checkpoint_directory(make_server, tmp_path):
    server = make_server(model=None, state=tmp_path / "state")
    env = {**os.environ, "STATE_DIR": str(tmp_path / "other"), "WEIGHTS_CHECKPOINT_DIR": str(server.checkpoints)}
    done = subprocess.run([PROGRAM, "serve", "--port", "0"], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "listening" not in done.stdout, done.stdout
    server.stop()


def test_a_second_start_on_a_state_directory_is_refused_and_changes_nothing(make_server, tmp_path):
    server = make_server(state=tmp_path / "state")
    for name in ("STATE_DIR", "WEIGHTS_CHECKPOINT_DIR"):
        other = {"STATE_DIR": str(server.state), "WEIGHTS_CHECKPOINT_DIR": str(tmp_path / "elsewhere")}
        if name == "STATE_DIR":
            other["WEIGHTS_CHECKPOINT_DIR"] = str(server.checkpoints)
        done = subprocess.run([PROGRAM, "serve", "--port", "0"], env={**os.environ, **other}, capture_output=True, text=True,
                              timeout=30)
        assert done.returncode == 1 and "is in use by another server" in done.stderr, done
        assert granted(server.get(f"/api/models/{server.row}"))["status"] == "loaded"
    refused(server.call("DELETE", f"/api/models/{server.row}"), 409, "MODEL_BUSY")
    server.stop()
    server.start()
    server.stop()


def test_a_second_server_does_not_clean_up_in_the_training_directory_of_the_first(make_server, tmp_path):
    server = make_server(model=None, state=tmp_path / "state")
    half = tmp_path / "state/weaver/a-model/.tmp-half-written"
    half.mkdir(parents=True)
    env = {**os.environ, "STATE_DIR": str(tmp_path / "other"), "WEIGHTS_CHECKPOINT_DIR": str(tmp_path / "elsewhere"),
           "WEAVER_CHECKPOINT_DIR": str(tmp_path / "state/weaver")}
    done = subprocess.run([PROGRAM, "serve", "--port", "0"], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "choose another WEAVER_CHECKPOINT_DIR" in done.stderr, done
    assert half.exists()
    server.stop()


def test_a_text_with_a_nul_is_refused_and_not_cut(own):
    path = str(MODELS / "tiny-lfm2")
    for body in ({"local_path": path, "custom_name": "a\0b"}, {"local_path": path + "\0/../x"}):
        details = refused(own.post("/api/models", {"source": "local", **body}), 422, "VALIDATION_ERROR")
        assert {e["path"] for e in details["errors"]} == {list(body)[-1]}
    refused(own.post(f"/api/models/{own.row}/lease", {"holder": "a\0b", "reason": "r"}), 400, "INVALID_LEASE_REQUEST",
            param="holder")


def test_a_value_that_is_cut_in_a_sentence_still_has_its_error(own):
    details = refused(own.post("/api/models", {"source": "x" + "\u00e9" * 60}), 422, "VALIDATION_ERROR")
    assert [e["path"] for e in details["errors"]] == ["source", "repo_id"]


def test_a_directory_whose_real_path_is_not_utf8_is_refused(own, tmp_path):
    real = os.fsencode(tmp_path) + b"/m\xff"
    shutil.copytree(os.fsencode(MODELS / "tiny-lfm2"), real)
    os.symlink(real, tmp_path / "link")
    before = granted(own.get("/api/models"))
    refused(own.post("/api/models", {"source": "local", "local_path": str(tmp_path / "link")}), 400, "INVALID_LOCAL_PATH")
    assert granted(own.get("/api/models")) == before


def test_test_variables_do_not_start_a_release_build(tmp_path):
    env = {**os.environ, "STATE_DIR": str(tmp_path), "WEIGHTS_CHECKPOINT_DIR": str(tmp_path / "c"),
           "WEIGHTS_TEST_FAIL": "weights"}
    if "faults" in PROGRAM or os.environ.get("CAIRN_TEST_BUILD"):
        pytest.skip("a test build reads them")
    done = subprocess.run([PROGRAM, "serve", "--port", "0"], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "WEIGHTS_TEST_FAIL" in done.stderr
