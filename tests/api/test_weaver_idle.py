"""Weights that nobody uses: when they are let go, what comes back, and what happens where all that are held are in use."""
import shutil
import struct

import pytest
from conftest import FAULTS, MODELS, needs_faults, refusing_writes, wait_until
from weaver_http import ENV, Run, Weaver, error, trace

PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7, 8]}]}


def images(server):
    return server.get("/api/health/detailed").json()["inference"]["images_alive"]


def sample(w, session):
    """The tokens, or the code of the refusal."""
    answer = w.call("POST", f"/sampling-sessions/{session['id']}/samples", {
        "prompt": PROMPT, "sampling_params": {"temperature": 1.0, "max_tokens": 6, "seed": 3}}, trace=trace())
    if answer.status >= 300:
        return answer.json()["error"]
    return w.wait(answer.json())["result"]["sequences"][0]["tokens"]


@needs_faults
@pytest.mark.parametrize("mode", ["lora", "full_ft"])
def test_an_idle_session_lets_go_of_its_weights_and_samples_the_same_again(make_server, mode):
    own = make_server({**ENV, "CAIRN": str(FAULTS), "WEIGHTS_TEST_IDLE_MS": "50"}, model=None)
    own.register(MODELS / "tiny-llama")
    w = Weaver(own).connect()
    run = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 1})
    run.train(1)
    session = w.sampler(model_path=run.export(path="s"))
    first = sample(w, session)
    w.post(run.path + "/terminate", {})
    wait_until(lambda: images(own) == 0)
    assert sample(w, session) == first and images(own) == 1
    wait_until(lambda: images(own) == 0)
    assert own.stop() == 0


@needs_faults
def test_a_session_whose_checkpoint_is_gone_keeps_what_it_has_loaded(make_server):
    own = make_server({**ENV, "CAIRN": str(FAULTS), "WEIGHTS_TEST_IDLE_MS": "50"}, model=None)
    own.register(MODELS / "tiny-llama")
    w = Weaver(own).connect()
    run = Run(w, lora_config={"rank": 4, "seed": 1})
    run.train(1)
    gone, back = (w.sampler(model_path=run.export(path=name), sampling_session_seq_id=i) for i, name in enumerate("ab", 1))
    first = sample(w, gone)
    c = next(c for c in run.checkpoints() if c["path"].endswith("sampler-a"))
    assert w.call("DELETE", f"/checkpoints/{c['id']}").status == 204
    w.post(run.path + "/terminate", {})
    other = own.register(MODELS / "tiny-qwen2")  # a base of its own, as the measure of time
    passing = Run(w, other["name"], lora_config={"rank": 4})
    w.post(passing.path + "/terminate", {})
    wait_until(lambda: images(own) == 1)
    assert sample(w, gone) == first and sample(w, back)
    assert own.stop() == 0


def test_bases_beyond_the_memory_for_them_wait_until_one_is_not_used(make_server):
    names = ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-lfm2"]  # 1,020 KB of 1 MB
    own = make_server({**ENV, "CAIRN_MEMORY_MB": "1"}, model=None)
    for name in [*names, "tiny-llama-untied-rope3"]:
        own.register(MODELS / name)
    w = Weaver(own).connect()
    runs = [Run(w, name, lora_config={"rank": 4}) for name in names]
    body = {"model_seq_id": 9, "base_model": "tiny-llama-untied-rope3", "lora_config": {"rank": 4}}
    post = lambda: w.call("POST", f"/sessions/{w.session}/models", body, trace=trace())  # noqa: E731
    error(post(), 503, "out_of_memory")
    assert images(own) == len(names)
    runs[0].train(1)  # the others go on
    w.post(runs[1].path + "/terminate", {})
    w.post(runs[2].path + "/terminate", {})
    runs[3].train(1)
    assert post().status == 201
    assert images(own) == 3  # with one of the two it would be 1,059 KB
    assert own.stop() == 0


def test_weights_that_are_not_finite_fail_the_sample_and_nothing_else(make_server, tmp_path):
    shutil.copytree(MODELS / "tiny-llama", tmp_path / "broken")
    file = tmp_path / "broken/model.safetensors"
    raw = bytearray(file.read_bytes())
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    raw[start:] = b"\xc0\x7f" * ((len(raw) - start) // 2)  # NaN in BF16
    file.write_bytes(raw)
    own = make_server(ENV, model=None)
    own.register(tmp_path / "broken")
    own.register(MODELS / "tiny-llama")
    w = Weaver(own).connect()
    broken, fine = (w.sampler(base_model=name, sampling_session_seq_id=i) for i, name in enumerate(("broken", "tiny-llama"), 1))
    answer = w.call("POST", f"/sampling-sessions/{broken['id']}/samples",
                    {"prompt": PROMPT, "sampling_params": {"max_tokens": 4}}, trace=trace())
    assert w.wait(answer.json(), "error")["error"] == "training_failed"
    assert len(sample(w, fine)) == 6
    assert own.stop() == 0


def test_an_export_that_cannot_be_noted_leaves_no_files(make_server):
    own = make_server(ENV, model=None)
    own.register(MODELS / "tiny-llama")
    w = Weaver(own).connect()
    c = Run(w, lora_config={"rank": 4, "seed": 1}).save(name="c")
    with refusing_writes(own, "UPDATE ON weaver_artifacts"):
        w.wait(w.post(f"/checkpoints/{c['id']}/export", {}), "error")
    assert list((own.state / "weaver/.artifacts").iterdir()) == []
    made = w.run(f"/checkpoints/{c['id']}/export", {})
    assert [p.name for p in (own.state / "weaver/.artifacts").iterdir()] == [made["id"]]
    assert own.stop() == 0
