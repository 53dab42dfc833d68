"""clients/python against a real server: attach, map, commit, save, load, and what it says when something goes wrong."""
import re
import sys
import time

import numpy as np
import pytest
from conftest import MODELS, OPERATOR, ROOT, TRAINER, wait_until
from test_adapters import copy_adapter
from trainer import ask, read_safetensors

sys.path.insert(0, str(ROOT / "clients/python"))
import cairn_client  # noqa: E402
from cairn_client import Client, bf16, errors  # noqa: E402

NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def server(make_server, tmp_path_factory):
    home = tmp_path_factory.mktemp("adapters")
    copy_adapter(home, "lora")
    return make_server({"ADAPTER_DIR": str(home), "WEIGHTS_HEARTBEAT_TIMEOUT_S": "3", "WEIGHTS_COMMIT_WATCHDOG_S": "4"})


@pytest.fixture
def client(server):
    return Client(f"http://{server.host}:{server.port}", TRAINER)


# ---- BF16 ----

def test_every_bf16_value_survives_the_way_to_float32_and_back():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bf16.to_float32(bits)
    back = bf16.from_float32(values)
    nan = np.isnan(values)
    assert np.array_equal(back[~nan], bits[~nan])
    assert np.isnan(bf16.to_float32(back[nan])).all()


@pytest.mark.parametrize("bits, expected", [
    (0x3F800000, 0x3F80), (0x3F807FFF, 0x3F80), (0x3F808000, 0x3F80), (0x3F808001, 0x3F81), (0x3F818000, 0x3F82),
    (0xBF818000, 0xBF82), (0x7F7FFFFF, 0x7F80), (0x7F800000, 0x7F80), (0x00008000, 0x0000), (0x00018000, 0x0002)])
def test_float32_is_rounded_to_nearest_and_ties_go_to_even(bits, expected):
    assert bf16.from_float32(np.array([bits], np.uint32).view(np.float32))[0] == expected


def test_values_may_have_any_layout():
    values = np.arange(12, dtype=np.float64).reshape(3, 4).T
    assert np.array_equal(bf16.to_float32(bf16.from_float32(values)), values)


# ---- attach and read ----

def test_the_mapped_tensors_are_those_of_the_file(client, server):
    with client.attach("tests") as weights:
        file = read_safetensors(MODELS / "tiny-llama/model.safetensors")
        tied = {n for n, t in weights.tensors.items() if t["shared_with"]}
        assert set(weights.tensors) - tied == set(file) and tied == {"lm_head.weight"}
        assert np.shares_memory(weights.view("lm_head.weight"), weights.view("model.embed_tokens.weight"))
        for name, (_, shape, data) in file.items():
            assert weights.view(name).tobytes() == data and list(weights.view(name).shape) == shape
            assert np.array_equal(weights.get(name), bf16.to_float32(np.frombuffer(data, "<u2").reshape(shape)))
        attachment = client.status()["attachment"]
        assert attachment["client"] == "tests" and attachment["identity"] == "forge"
    assert client.status()["attached"] is False


def test_a_load_after_the_attachment_has_ended_loads_nothing(client, server):
    """As after a restart of the server: the views would show another memory than the one that was loaded into."""
    with client.attach("tests") as weights:
        name = weights.save("ended", 1)["name"]
    client.load(model_id=server.row)
    with pytest.raises(errors.AttachmentError):
        weights.load(name)
    assert client.status()["model"]["origin"] == "model"


@pytest.mark.parametrize("token", ["a\nb", "\u20ac", "a b"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token):
    with pytest.raises(errors.RequestError) as refusal:
        Client("http://127.0.0.1:9", token)
    assert token not in str(refusal.value)


def test_an_arena_that_is_not_whole_leaves_no_attachment(client, monkeypatch):
    def shorter(fd, bytes):
        raise ValueError("mmap length is greater than file size")
    monkeypatch.setattr(cairn_client.attachment.mmap, "mmap", shorter)
    with pytest.raises(errors.Unreachable, match="cannot be mapped"):
        client.attach("tests")
    assert client.status()["attached"] is False


def test_a_view_outside_of_a_commit_cannot_be_written(client):
    with client.attach() as weights:
        with pytest.raises(ValueError):
            weights.view(NORM)[0] = 0


def test_the_heartbeat_keeps_the_attachment_live(client):
    with client.attach() as weights:
        time.sleep(3.6)
        assert client.status()["attachment"]["state"] == "live" and weights.heartbeat_error is None


# ---- commits ----

def test_a_commit_is_served_and_counted(client, server):
    with client.attach() as weights:
        before, old = ask(server), weights.get(NORM)
        with weights.commit() as step:
            assert client.status()["weights_state"] == "writing"
            step.put(NORM, -old)
        assert step.result["weights_state"] == "clean" and step.result["overran"] is False
        assert client.status()["commits"] == step.result["commits"] and client.status()["serving"] == "serving"
        assert np.array_equal(weights.get(NORM), -old) and ask(server)[0] != before[0]
        with weights.commit() as step:
            step.view(NORM)[...] ^= 0x8000
        assert ask(server)[0] == before[0]


def test_values_encoded_before_the_commit_are_the_same_bits(client):
    with client.attach() as weights:
        old = weights.digest()
        values = weights.get(NORM) * 1.01
        ready = weights.encode(NORM, values)
        with weights.commit() as step:
            step.put(NORM, ready)
        first = weights.digest()
        with weights.commit() as step:
            step.put(NORM, values)
        assert weights.digest() == first != old
        with pytest.raises(ValueError, match="shape"):
            weights.encode(NORM, values[1:])


def test_f16_weights_are_float16(make_server):
    server = make_server(model="tiny-llama-f16")
    with Client(f"http://{server.host}:{server.port}", TRAINER).attach() as weights:
        assert weights.view(NORM).dtype == np.float16
        values = weights.get(NORM) + 0.3
        with weights.commit() as step:
            step.put(NORM, values)
        assert np.array_equal(weights.view(NORM), values.astype(np.float16))


def test_a_commit_inside_a_held_phase_leaves_the_hold_to_its_owner(client):
    with client.attach() as weights:
        assert weights.quiesce()["quiesced"] is True
        with weights.commit() as step:
            step.put(NORM, weights.get(NORM))
        assert client.status()["serving"] == "quiesced"
        assert weights.resume()["resumed"] is True
        assert client.status()["serving"] == "serving"


def test_values_of_another_shape_are_refused_before_anything_is_written(client):
    with client.attach() as weights:
        old = weights.digest()
        with pytest.raises(ValueError, match="shape"):
            with weights.commit(undo=True) as step:
                step.put(NORM, np.zeros(3))
        assert weights.digest() == old and client.status()["weights_state"] == "clean"


def test_undo_takes_back_what_was_written_and_serving_goes_on(client, server):
    with client.attach() as weights:
        old, answer = weights.digest(), ask(server)[0]
        with pytest.raises(KeyError) as caught:
            with weights.commit(undo=True) as step:
                step.put(NORM, np.zeros(step.view(NORM).shape))
                for tied in ("model.embed_tokens.weight", "lm_head.weight"):
                    step.view(tied)[...] += 1
                raise KeyError("a bug in the trainer")
        assert "had before this commit" in caught.value.__notes__[0]
        assert weights.digest() == old and ask(server)[0] == answer
        assert client.status()["serving"] == "serving"


def test_an_exception_without_undo_leaves_the_commit_open_and_says_so(client, server):
    with client.attach() as weights:
        old = weights.get(NORM)
        with pytest.raises(KeyError) as caught:
            with weights.commit() as step:
                step.view(NORM)[0] ^= 1
                raise KeyError("a bug in the trainer")
        assert "still open" in caught.value.__notes__[0] and step.watchdog_expires_at in caught.value.__notes__[0]
        assert client.status()["weights_state"] == "writing" and weights.open_commit is step
        step.finish()
        assert client.status()["weights_state"] == "clean" and weights.open_commit is None
        with weights.commit() as step:
            step.put(NORM, old)


def test_an_attachment_that_ends_in_an_open_commit_does_not_hide_the_cause(client, server):
    with client.attach() as weights:
        base = weights.save("way-back", 1)
    with pytest.raises(ZeroDivisionError) as caught:
        with client.attach() as weights:
            with weights.commit() as step:
                step.view(NORM)[...] = 0
                1 / 0
    assert any("WEIGHTS_NOT_CLEAN" in note for note in caught.value.__notes__)
    wait_until(lambda: client.status()["weights_state"] == "torn" and client.status()["attachment"]["state"] == "stale")
    with pytest.raises(cairn_client.StateError) as torn:
        client.call("POST", "/v1/completions", {"model": server.model, "prompt": "a"})
    assert (torn.value.code, torn.value.status) == ("weights_torn", 503)
    operator = Client(client.transport.url, OPERATOR)
    operator.clear_stale()
    operator.load(base["name"])
    assert client.status()["weights_state"] == "clean"


# ---- checkpoints ----

def test_save_load_and_lineage(client, server):
    with client.attach() as weights:
        first = weights.save("round", 1, domain="tests")
        digest = weights.digest()
        with weights.commit() as step:
            step.view(NORM)[...] ^= 1
        second = weights.save("round", 2, domain="tests")
        assert second["parent_check"] == "match"
        chain = client.lineage()
        assert [c["name"] for c in chain["chain"]][:2] == [second["name"], first["name"]] and chain["break"] is None
        loaded = weights.load(first["name"])
        assert loaded["mode"] == "in_place" and weights.digest() == digest


# ---- models ----

def test_the_catalogue_through_the_client(client, server, tmp_path):
    row = client.register(MODELS / "tiny-qwen2", "second")
    assert client.model("second")["id"] == row["id"] == client.model(row["id"])["id"]
    assert client.load_model("second")["status"] == "loaded"
    client.load_model(server.row)
    with pytest.raises(cairn_client.ModelError, match="no model is called"):
        client.model("none")


# ---- leases and adapters ----

def test_a_lease_keeps_the_resident_and_its_holder_may_replace_it(client, server):
    other = client.register(MODELS / "tiny-llama-f16", "leased-against")
    with client.lease("tiny-llama", "eval", "nightly", ttl_s=60) as lease:
        assert lease.info["holder"] == "eval" and "lease_id" not in lease.info
        with pytest.raises(cairn_client.BusyError) as e:
            client.load_model(other["id"])
        assert e.value.code == "MODEL_LEASED" and e.value.details["reason"] == "nightly"
        with pytest.raises(cairn_client.BusyError):
            client.load(model_id=server.row)
        assert lease.renew(90)["ttl_seconds"] == 90
        assert client.load_model(other["id"], lease=lease)["status"] == "loaded"  # which ends the lease
    with pytest.raises(cairn_client.StateError) as e:
        lease.renew()
    assert (e.value.code, e.value.details["end_reason"]) == ("LEASE_EXPIRED", "model_unloaded")
    client.load_model(server.row)
    with pytest.raises(cairn_client.ModelError) as e:
        client.lease(other["id"], "eval", "x")
    assert e.value.code == "MODEL_NOT_RESIDENT"
    with pytest.raises(cairn_client.RequestError) as e:
        client.lease(server.row, "", "x")
    assert e.value.code == "INVALID_LEASE_REQUEST"


def test_an_adapter_is_applied_and_removed_also_by_the_one_who_is_attached(client, server):
    assert [a["name"] for a in client.adapters()["adapters"]] == ["lora"]
    plain = ask(server)[0]
    assert client.apply_adapter("lora", 0.5)["scale"] == 0.5
    assert ask(server)[0] != plain and client.adapters()["applied"]["name"] == "lora"
    assert (client.remove_adapter(), client.remove_adapter()) == ("lora", None)
    with client.attach() as weights:
        digest = weights.digest()
        with pytest.raises(cairn_client.AttachmentError):
            client.apply_adapter("lora")
        weights.apply_adapter("lora")
        assert ask(server)[0] != plain and weights.digest() == digest
        assert weights.remove_adapter() == "lora"
    assert ask(server)[0] == plain
    with pytest.raises(cairn_client.RequestError) as e:
        client.apply_adapter("none")
    assert e.value.code == "ADAPTER_NOT_FOUND"


# ---- errors ----

def test_every_code_of_the_server_has_a_family():
    table = (ROOT / "src/service/refusals.tbl").read_text()
    rows = re.findall(r"^MANAGEMENT\((\w+), (\d+)\)", table, re.M)
    rows += re.findall(r'^OPENAI\(\w+, "(\w+)", (\d+),', table, re.M)
    assert len(rows) > 50
    for code, http in rows:
        error = errors.error_of(int(http), {"error": {"code": code, "message": "m", "details": {"a": 1}}})
        assert type(error) is not cairn_client.CairnError and isinstance(error, cairn_client.CairnError)
        assert (error.code, error.status, error.message, error.details) == (code, int(http), "m", {"a": 1})


@pytest.mark.parametrize("status, body, family, code", [
    (404, {"detail": "Not Found"}, "RequestError", "HTTP_404"), (500, None, "ServerError", "HTTP_500"),
    (409, {"error": {"code": "NEW_CODE", "message": "m"}}, "StateError", "NEW_CODE"),
    (503, {"error": {"code": "new", "message": "m"}}, "BusyError", "new"), (502, ["x"], "ServerError", "HTTP_502")])
def test_codes_that_the_client_does_not_know_are_judged_by_status(status, body, family, code):
    error = errors.error_of(status, body)
    assert (type(error).__name__, error.code) == (family, code)


def test_refusals_are_typed(client, server):
    with pytest.raises(cairn_client.AccessError) as e:
        Client(client.transport.url, "wrong").attach()
    assert (e.value.code, e.value.status) == ("UNAUTHORIZED", 401)
    with pytest.raises(cairn_client.CheckpointError) as e:
        client.load("tiny-llama:none:step-1")
    assert (e.value.code, e.value.status) == ("CHECKPOINT_NOT_FOUND", 404)
    with client.attach() as weights:
        with pytest.raises(cairn_client.AttachmentError) as e:
            client.attach()
        assert e.value.details["identity"] == "forge"
        with pytest.raises(cairn_client.ManifestError) as e:
            weights.save("r", 1, optimizer={"name": "adamw"})
        assert e.value.details["errors"][0]["path"].startswith("$.optimizer")


def test_no_server_and_no_cairn_are_told_apart_from_refusals(client, server):
    with pytest.raises(cairn_client.Unreachable) as e:
        Client("http://127.0.0.1:9", TRAINER).status()
    assert e.value.status == 0
    with pytest.raises(cairn_client.RequestError, match="no URL"):
        Client("localhost")
