"""The real training SDK against cairn serve: the page on saving and loading, losses, packs, samples, downloads, restarts."""
import asyncio
import json
import math
import os
import signal
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/api"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "standin"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["NO_PROXY"] = "127.0.0.1,localhost"
from conftest import MODELS, make_server  # noqa: E402,F401  (a fixture)

weaver = pytest.importorskip("weaver")
from weaver import AsyncServiceClient, ServiceClient, WeaverAPIError, types  # noqa: E402
from weaver.operations import AsyncOperationHandle, OperationHandle, WeaverOperationError  # noqa: E402
from weaver.training_client import TrainingClient  # noqa: E402

KEY, BASE, N = "sk-sdk-tests", "tiny-llama", 20


@pytest.fixture(scope="module")
def own(make_server):  # noqa: F811
    server = make_server({"WEAVER_API_KEYS": f"sdk:{KEY}"}, model=None)
    server.register(MODELS / BASE)
    return server


def connect(server, **kw):
    s = ServiceClient(base_url=f"http://{server.host}:{server.port}", api_key=KEY, heartbeat_interval=0.2, **kw)
    s.connect()
    return s


@pytest.fixture(scope="module")
def service(own):
    s = connect(own, name="sdk", labels={"suite": "clients"})
    yield s
    s.close()


def numbers(seed, n=N):
    return [1 + (seed * 7919 + i * i * 31 + i * 17) % 199 for i in range(n + 1)]


def datum(seed=1, n=N, datum_id=None, **inputs):
    s = numbers(seed, n)
    return types.Datum.from_raw(model_input=types.ModelInput.from_ints(s[:-1]), datum_id=datum_id,
                                loss_fn_inputs={"target_tokens": s[1:], "weights": [1.0] * n, **inputs})


def outputs(result):
    return result["result"]["loss_fn_outputs"]


def scores(t, seed=1):
    return outputs(t.forward([datum(seed)], "forward_logprob"))[0]["logprobs"]["data"]


def train(t, n, lr=3e-3, seed=1):
    losses = []
    for _ in range(n):
        losses.append(t.forward_backward([datum(seed)], "cross_entropy")["metrics"]["loss"])
        t.optim_step(types.AdamParams(learning_rate=lr))
    return losses


def lora(service, seed=7, rank=8):
    return service.create_model(base_model=BASE, lora_config=types.LoraConfig(rank=rank, seed=seed))


PROMPT = types.ModelInput.from_ints(numbers(3, 7))


def test_the_service_tells_who_and_what_it_is(service):
    uuid.UUID(service.session_id)
    assert service.list_supported_models() == [BASE]
    assert service.list_supported_models(detailed=True)[0].training_mode("lora") is not None
    assert service.resolve_scope()["project"]["id"] and service.get_scheduling_options()["can_select"] is False
    assert service.datasets.list() == [] or len(service.datasets.list()) == 0


def test_keys_are_needed(own):
    for key in ("sk-other", None):
        with pytest.raises(WeaverAPIError) as e:
            ServiceClient(base_url=f"http://{own.host}:{own.port}", api_key=key).connect()
        assert (e.value.status_code, e.value.code) == (401, "unauthorized")


def test_the_page_on_saving_and_loading(service):
    t = lora(service)
    assert t.get_tokenizer().encode("Hello")
    first = train(t, 4)
    assert first[-1] < first[0]
    now = scores(t)
    path = t.save_weights_for_sampler(name="step-100")
    sampling = t.save_weights_and_get_sampling_client(name="step-100")
    same = service.create_sampling_client(model_path=path, base_model=BASE, model_id=t.model_id)
    alias = service.get_sampling_client(path, base_model=BASE)
    texts = [c.sample(prompt=PROMPT, sampling_params=types.SamplingParams(max_tokens=5, temperature=0.0))["sequences"][0]
             for c in (sampling, same, alias)]
    assert texts[0]["tokens"] == texts[1]["tokens"] == texts[2]["tokens"] and isinstance(texts[0]["text"], str)
    checkpoint = t.save_state(name="step-100")
    assert checkpoint.path == f"weaver://{t.model_id}/checkpoints/step-100" != path
    whole = t.save_state(name="step-100-full", checkpoint_type="weight_and_optimizer")
    straight = train(t, 3)
    t.load_state(checkpoint, wait=True)
    assert scores(t) == now
    train(t, 1)
    t.load_state(f"weaver://{t.model_id}/checkpoints/step-100", wait=True)
    assert scores(t) == now
    t.load_state_with_optimizer(whole, wait=True)
    assert train(t, 3) == straight, "training goes on exactly"
    listed = {c.path: c for c in t.list_checkpoints()}
    assert listed[checkpoint.path].expires_at is None and listed[checkpoint.path].status == "completed"
    assert listed[path].ttl_seconds == 3600 and listed[path].checkpoint_type == "sampling"
    t.set_checkpoint_ttl(checkpoint, ttl_seconds=24 * 3600)
    assert {c.path: c for c in t.list_checkpoints()}[checkpoint.path].ttl_seconds == 24 * 3600
    t.set_checkpoint_ttl(checkpoint, ttl_seconds=None)
    with pytest.raises((WeaverAPIError, WeaverOperationError)) as e:
        t.load_state_with_optimizer(checkpoint)
    assert e.value.code == "optimizer_state_missing"
    t.terminate()


def test_sampler_and_trainer_have_the_same_bits(service):
    for kw in ({"lora_config": types.LoraConfig(rank=4, seed=1)}, {"training_mode": "full_ft"}):
        t = service.create_model(base_model=BASE, **kw)
        train(t, 2, 1e-3)
        sampler = t.save_weights_and_get_sampling_client()
        got = sampler.compute_logprobs(prompt=types.ModelInput.from_ints(numbers(1)))
        assert got[0] is None and got[1:] == scores(t)
        t.terminate()


def test_losses_follow_their_formulas(service):
    t = lora(service, seed=3)
    lp = scores(t)
    adv = [1.0 if i % 2 else -0.5 for i in range(N)]
    old = [x - math.log(2.0) for x in lp]
    mean = lambda f: sum(f(i) for i in range(N)) / N  # noqa: E731
    want = {"importance_sampling": mean(lambda i: -2 * adv[i]), "ppo_clip": mean(lambda i: -min(2 * adv[i], 1.2 * adv[i])),
            "truncated_importance_sampling": mean(lambda i: -2 * adv[i] * lp[i]), "cispo": mean(lambda i: -1.2 * adv[i] * lp[i])}
    for name, value in want.items():
        got = t.forward([datum(1, logprobs=old, advantages=adv)], name)
        assert math.isclose(got["metrics"]["loss"], value, rel_tol=1e-4, abs_tol=1e-6), name
        assert math.isclose(got["metrics"]["ratio"], 2.0, rel_tol=1e-4)
    t.terminate()


def test_packs_and_json_give_the_same_numbers(own):
    seen = []
    for kw in ({}, {"tensor_transport": "http-binary", "tensor_compression": "raw"},
               {"tensor_transport": "http-binary", "tensor_compression": "zstd"}):
        s = connect(own, **kw)
        t = lora(s, seed=5)
        data = [datum(i, N + i, datum_id=f"d{i}") for i in range(1, 5)]
        first = t.forward_backward(data, "cross_entropy")
        t.optim_step(types.AdamParams(learning_rate=3e-3))
        assert [o["datum_id"] for o in weaver.align_training_outputs(data, first)] == ["d1", "d2", "d3", "d4"]
        seen.append([[o["logprobs"]["data"] for o in outputs(r)] for r in (first, t.forward(data, "forward_logprob"))])
        s.close()
    assert seen[0] == seen[1] == seen[2]


def test_handles_end_in_order_and_a_step_does_not_wait_for_a_poll(service):
    t = lora(service, seed=61)
    start = time.monotonic()
    train(t, 5)
    assert time.monotonic() - start < 5 * 2 * 0.45, "no call slept before its first poll"
    handles = []
    for _ in range(3):
        handles += [t.forward_backward([datum(1)], "cross_entropy", wait=False), t.optim_step(types.AdamParams(learning_rate=3e-3), wait=False)]
    assert all(isinstance(h, OperationHandle) for h in handles)
    losses = [r["metrics"]["loss"] for r in OperationHandle.wait_all(handles)[::2]]
    assert losses == sorted(losses, reverse=True)
    with pytest.raises(WeaverAPIError) as e:
        OperationHandle.from_payload(service.http, {"id": str(uuid.uuid4()), "status": "pending"}).refresh()
    assert e.value.status_code == 404
    t.terminate()


def test_refusals_are_typed(service):
    t = lora(service)
    for call, code in ((lambda: t.forward([datum(1)], "none"), "unknown_loss_fn"),
                       (lambda: t.forward([datum(1, weights=[1.0] * 3)], "cross_entropy"), "shape_mismatch"),
                       (lambda: t.forward([], "cross_entropy"), "invalid_datum"),
                       (lambda: t.load_state("weaver://x/checkpoints/none"), "checkpoint_not_found"),
                       (lambda: t.save_state(checkpoint_type="all"), "invalid_checkpoint_type"),
                       (lambda: service.create_model(base_model="none"), "base_model_not_found")):
        with pytest.raises((WeaverAPIError, WeaverOperationError)) as e:
            call()
        assert e.value.code == code
    t.log_metrics({"reward": 1.5}, step=3)
    t.terminate()
    with pytest.raises(WeaverAPIError) as e:
        t.forward([datum(1)], "cross_entropy")
    assert e.value.code == "model_terminated"


def test_weights_are_downloaded_and_resumed(service, tmp_path):
    t = lora(service, seed=9)
    train(t, 1)
    c = t.save_state(name="download")
    artifact = t.export_weights(checkpoint=c)
    assert artifact.kind == "hf_adapter" and t.export_weights(checkpoint=c.path).id == artifact.id
    whole = service.download_weights(artifact, tmp_path / "a")
    config = json.loads((whole / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 8
    bytes_ = (whole / "adapter_model.safetensors").read_bytes()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "adapter_model.safetensors.part").write_bytes(bytes_[:100])
    assert (service.download_weights(c.path, tmp_path / "b") / "adapter_model.safetensors").read_bytes() == bytes_
    merged = service.download_weights(t.export_weights(checkpoint=c, merge_adapter=True), tmp_path / "c")
    assert (merged / "config.json").exists() and (merged / "model.safetensors").exists()
    t.terminate()


def test_generation_of_a_full_model_pauses_and_goes_on(service):
    t = service.create_model(base_model=BASE, training_mode="full_ft")
    sampler = t.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=60, temperature=0.0)
    whole = sampler.sample(prompt=PROMPT, sampling_params=params)["sequences"][0]["tokens"]
    for mode in ("retract", "in_place"):
        handle = sampler.sample(prompt=PROMPT, sampling_params=params, wait=False)
        assert sampler.pause_generation(mode=mode)["status"] == "paused" and sampler.continue_generation()["status"] == "running"
        assert handle.result()["result"]["sequences"][0]["tokens"] == whole
    with sampler.paused(mode=types.PauseMode.ABORT) as ack:
        assert ack["mode"] == "abort"
    with pytest.raises(ValueError):
        lora(service).save_weights_and_get_sampling_client().pause_generation()


async def asynchronous(server):
    async with AsyncServiceClient(base_url=f"http://{server.host}:{server.port}", api_key=KEY, heartbeat_interval=0.2,
                                  tensor_transport="http-binary") as s:
        t = await s.create_model(base_model=BASE, lora_config=types.LoraConfig(rank=8, seed=61))
        calls = [x for _ in range(3) for x in (t.forward_backward([datum(1)], "cross_entropy", wait=False),
                                               t.optim_step(types.AdamParams(learning_rate=3e-3), wait=False))]
        results = await AsyncOperationHandle.wait_all(list(await asyncio.gather(*calls)))
        c = await t.save_state(name="async", checkpoint_type="weight_and_optimizer")
        await t.load_state_with_optimizer(c.path)
        sampler = await t.save_weights_and_get_sampling_client(name="async")
        answers = await asyncio.gather(*(sampler.sample(prompt=PROMPT, sampling_params=types.SamplingParams(max_tokens=4, temperature=0.0))
                                         for _ in range(4)))
        await t.terminate()
        return [r["metrics"]["loss"] for r in results[::2]], {tuple(a["sequences"][0]["tokens"]) for a in answers}


def test_the_asynchronous_client_keeps_the_order_of_calls_fired_together(own, service):
    losses, answers = asyncio.run(asynchronous(own))
    t = lora(service, seed=61)
    assert losses == train(t, 3) and len(answers) == 1
    t.terminate()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_training_resumes_exactly_in_another_process(make_server, tmp_path, how):  # noqa: F811
    server = make_server({"WEAVER_API_KEYS": f"sdk:{KEY}"}, model=None, state=tmp_path)
    server.register(MODELS / BASE)
    s = connect(server)
    t = lora(s, seed=97)
    train(t, 3)
    c, at = t.save_state(name="keep", checkpoint_type="weight_and_optimizer"), scores(t)
    straight = train(t, 3)
    server.stop(how)
    server.start()
    again = connect(server)
    old = TrainingClient(service=again, model_id=t.model_id, base_model=BASE, session_id=again.session_id)
    with pytest.raises(WeaverAPIError) as e:
        old.forward([datum(1)], "cross_entropy")
    assert e.value.code == "model_lost" and e.value.details["last_checkpoint"] == c.path
    old.load_state_with_optimizer(c)
    assert scores(old) == at and train(old, 3) == straight
    fresh = lora(again, seed=98)
    fresh.load_state_with_optimizer(c.path)
    assert train(fresh, 3) == straight
    again.close()
