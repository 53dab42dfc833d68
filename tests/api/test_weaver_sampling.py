"""Sampling sessions: weights that stay, samples, log-probabilities, pauses, and what is refused."""
import json
import math
import re
import shutil
import sqlite3
import threading
import uuid

import pytest
from conftest import MODELS, wait_until
from weaver_http import ENV, Run, Weaver, datum, error, tokens, trace


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server(ENV, model=None)
    server.register(MODELS / "tiny-llama")
    for name in ("tiny-lfm2", "tiny-qwen2", "tiny-qwen3"):
        server.register(MODELS / name)
    return server


@pytest.fixture(scope="module")
def run(w):
    run = Run(w, lora_config={"rank": 8, "seed": 7})
    run.train(2)
    return run


@pytest.fixture(scope="module")
def sampler(w, run):
    return Sampler(w, model_path=run.export(path="s"), base_model="tiny-llama", model_id=run.id)


@pytest.fixture(scope="module")
def full(w):
    run = Run(w, training_mode="full_ft")
    run.train(1, 1e-3)
    return Sampler(w, model_path=run.export(path="f"))


def chunks(ids):
    return {"chunks": [{"type": "encoded_text", "tokens": ids}]}


PROMPT = tokens(3, 7)


class Sampler:
    def __init__(self, w, **body):
        self.w = w
        self.made = w.sampler(**body)
        self.path = f"/sampling-sessions/{self.made['id']}"

    def body(self, prompt=PROMPT, extra=None, **params):
        return {"prompt": chunks(prompt), "sampling_params": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, **params}, **(extra or {})}

    def sample(self, *a, **kw):
        return self.w.run(self.path + "/samples", self.body(*a, **kw))["result"]

    def one(self, *a, **kw):
        return self.sample(*a, **kw)["sequences"][0]

    def logprobs(self, prompt=PROMPT, **extra):
        return self.w.run(self.path + "/logprobs", {"prompt": chunks(prompt), **extra})["result"]


# ---- sessions ----

def test_a_session_tells_what_it_samples(w, run, sampler):
    made = sampler.made
    assert made["base_model"] == "tiny-llama" and made["model_id"] == run.id and made["model_path"].endswith("/sampler-s")
    assert made["tokenizer_path"] == str(MODELS / "tiny-llama") and w.get(sampler.path) == made
    assert Sampler(w, model_path=made["model_path"]).made["base_model"] == "tiny-llama"
    base = Sampler(w, base_model="tiny-llama").made
    assert base["model_path"] is None and base["checkpoint_id"] is None


@pytest.mark.parametrize("body,status,code", [
    ({}, 400, "invalid_request"), ({"base_model": None, "model_path": None}, 400, "invalid_request"),
    ({"base_model": "none"}, 404, "base_model_not_found"), ({"model_path": 5}, 400, "invalid_request"),
    ({"model_path": f"weaver://{uuid.uuid4()}/checkpoints/x", "base_model": "tiny-llama"}, 404, "checkpoint_not_found"),
    ({"model_path": "nonsense"}, 404, "checkpoint_not_found")])
def test_a_bad_session_is_refused(w, body, status, code):
    error(w.call("POST", f"/sessions/{w.session}/sampling-sessions", body), status, code)


def test_a_deleted_session_is_gone(w):
    s = Sampler(w, base_model="tiny-llama")
    assert w.call("DELETE", s.path).status == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/samples"), ("POST", "/logprobs")):
        error(w.call(method, s.path + path, s.body() if method == "POST" else None), 404, "sampling_session_not_found")


def test_a_repeated_deletion_gets_its_first_answer(w):
    s, mark = Sampler(w, base_model="tiny-llama"), trace()
    assert [w.call("DELETE", s.path, trace=mark).status for _ in range(2)] == [204, 204]


# ---- weights that take long ----

def wide_model(root, gigabytes):
    """tiny-llama with a very wide MLP of zeros, which take no room on the disk."""
    made = root / f"wide-{gigabytes}"
    shutil.copytree(MODELS / "tiny-llama", made)
    config = json.loads((made / "config.json").read_text())
    config["intermediate_size"] = ff = int(gigabytes * 1e9 / (2 * 64 * 3 * 3)) // 64 * 64
    (made / "config.json").write_text(json.dumps(config))
    file = made / "model.safetensors"
    raw = file.read_bytes()
    header = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
    at, names = 0, [name for name in header if name != "__metadata__"]
    for name in names:
        shape = [ff if n == 112 else n for n in header[name]["shape"]]
        n = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps({name: header[name] for name in names}).encode()
    file.unlink()
    with file.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)
    return made


def slow_session(w, root):
    """202 and its body, of a model so large that it is not read in 250 ms."""
    for gigabytes in (0.25, 0.5, 1, 2, 4):
        name = f"wide-{gigabytes}-{uuid.uuid4().hex[:6]}"
        w.server.register(wide_model(root, gigabytes), custom_name=name)
        answer = w.call("POST", f"/sessions/{w.session}/sampling-sessions", {"base_model": name})
        if answer.status == 202:
            return name, answer.json()
        w.call("DELETE", f"/sampling-sessions/{answer.json()['id']}")
        shutil.rmtree(root / f"wide-{gigabytes}")
    raise AssertionError("every model was there at once")


def test_a_session_whose_weights_take_long_tells_the_operation_that_reads_them(make_server, tmp_path):
    w = Weaver(make_server(ENV, model=None)).connect()
    name, both = slow_session(w, tmp_path)
    session, operation = both["sampling_session"], both["sync_operation"]
    assert session["base_model"] == name and session["tokenizer_path"].startswith(str(tmp_path))
    assert operation["type"] == "sync_weights" and operation["status"] in ("pending", "running") and operation["model_id"] is None
    assert w.get(f"/sampling-sessions/{session['id']}") == session
    assert w.wait(operation) == {"sampling_session_id": session["id"]}
    assert w.sampler(base_model=name)["base_model"] == name
    again = w.call("POST", f"/sessions/{w.session}/sampling-sessions", {"base_model": name})
    assert again.status == 201, "what is in memory is not read again"
    assert w.call("DELETE", f"/sampling-sessions/{session['id']}").status == 204


def test_a_session_that_is_deleted_while_its_weights_are_read_is_gone(make_server, tmp_path):
    w = Weaver(make_server(ENV, model=None)).connect()
    _, both = slow_session(w, tmp_path)
    path = f"/sampling-sessions/{both['sampling_session']['id']}"
    assert w.call("DELETE", path).status == 204
    assert w.wait(both["sync_operation"], "error")["error"] == "sampling_session_not_found"
    error(w.call("GET", path), 404, "sampling_session_not_found")


def test_weights_that_cannot_be_read_refuse_the_session_and_leave_none(make_server, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(MODELS / "tiny-llama", base)
    server = make_server(ENV, model=None)
    server.register(base, custom_name="base")
    w = Weaver(server).connect()
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-64])
    answer = w.call("POST", f"/sessions/{w.session}/sampling-sessions", {"base_model": "base"})
    if answer.status == 202:  # on a busy machine
        assert w.wait(answer.json()["sync_operation"], "error")["error"] == "base_model_not_found"
    else:
        error(answer, 404, "base_model_not_found")
        operation = w.get("/operations?limit=1")["items"][0]
        assert operation["type"] == "sync_weights" and operation["status"] == "error"
        db = sqlite3.connect(server.state / "cairn.db")
        assert db.execute("SELECT count(*) FROM weaver_samplers").fetchone()[0] == 0
        db.close()


def test_a_session_that_is_deleted_while_its_weights_come_back_stays_deleted(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    run = Run(w, training_mode="full_ft")
    sessions = [Sampler(w, model_path=run.export(path=f"s{i}")) for i in range(24)]
    server.stop()
    server.start()
    body = {"prompt": chunks(PROMPT)}
    threads = [threading.Thread(target=w.call, args=("POST", s.path + "/logprobs", body)) for s in sessions]
    [t.start() for t in threads]  # images are read one after the other
    for s in reversed(sessions):
        assert w.call("DELETE", s.path).status == 204
    [t.join() for t in threads]
    for s in sessions:
        error(w.call("GET", s.path), 404, "sampling_session_not_found")
    server.stop()


# ---- the same numbers as the trainer ----

@pytest.mark.parametrize("mode", ["lora", "full_ft"])
@pytest.mark.parametrize("base", ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-lfm2"])
def test_a_sampler_scores_with_the_bits_of_the_trainer(w, base, mode):
    run = Run(w, base=base, training_mode=mode, lora_config={"rank": 4, "seed": 2})
    run.train(2, 1e-3)
    want, s = run.logprobs(), Sampler(w, model_path=run.export())
    got = s.logprobs(tokens(1))["prompt_logprobs"]
    assert got[0] is None and got[1:] == want
    run.train(1, 1e-3)
    assert s.logprobs(tokens(1))["prompt_logprobs"][1:] == want, "an export does not move"
    q = s.one(max_tokens=8, seed=1)
    assert s.logprobs(PROMPT + q["tokens"])["prompt_logprobs"][len(PROMPT):] == q["logprobs"]


def test_an_export_has_the_same_bits_from_memory_and_from_its_file(w):
    run = Run(w, lora_config={"rank": 8, "seed": 3})
    run.train(1)
    want, path = run.logprobs(), run.export(path="first")
    for i in range(4):  # the last four exports are still in memory, the first is read again
        last = run.export(path=f"later-{i}")
    for p in (path, last):
        assert Sampler(w, model_path=p).logprobs(tokens(1))["prompt_logprobs"][1:] == want


def policy_datum(sequence):
    """A sampled sequence as a datum: its prompt has no weight."""
    ids, n = PROMPT + sequence["tokens"], len(PROMPT) - 1
    floats = lambda before, rest: {"data": [before] * n + rest, "dtype": "float32"}
    inputs = {"target_tokens": {"data": ids[1:], "dtype": "int64"}, "logprobs": floats(-7.0, sequence["logprobs"]),
              "advantages": floats(1.0, [1.0] * len(sequence["tokens"])), "weights": floats(0.0, [1.0] * len(sequence["tokens"]))}
    return {"model_input": chunks(ids[:-1]), "loss_fn_inputs": inputs}


def gap_metrics(server):
    page = server.get("/metrics").body.decode()
    number = lambda name: float(re.search(rf"^{name} (\S+)$", page, re.M).group(1))
    return number("cairn_weaver_compared_tokens_total"), number("cairn_weaver_logprob_gap")


@pytest.mark.parametrize("mode", ["lora", "full_ft"])
def test_what_was_sampled_is_compared_with_the_trainer_whatever_the_client_says(own, w, mode):
    run = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 2})
    run.train(1, 1e-3)
    before, gap = gap_metrics(own)
    sequences = Sampler(w, model_path=run.export()).sample(extra={"num_samples": 2}, max_tokens=5, seed=4, temperature=0.7)["sequences"]
    data, n = [policy_datum(q) for q in sequences], sum(len(q["tokens"]) for q in sequences)
    for d in data:
        del d["loss_fn_inputs"]["logprobs"], d["loss_fn_inputs"]["advantages"]
    run.forward(data, "cross_entropy")
    assert gap_metrics(own) == (before + n, 0) and gap == 0
    run.forward(data, "cross_entropy", temperature=2)
    run.forward([datum(1)], "cross_entropy")
    saved = run.save("weight_and_optimizer")["id"]
    run.backward(data, "cross_entropy")
    assert gap_metrics(own) == (before + n, 0), "other tokens, another temperature, another checkpoint"
    run.step(1e-2)
    run.forward(data, "cross_entropy")
    assert gap_metrics(own) == (before + n, 0), "other weights"
    run.load(saved, True)
    again = Sampler(w, model_path=saved).one(max_tokens=5, seed=5)
    run.backward([policy_datum(again)], "importance_sampling")
    assert gap_metrics(own) == (before + n + len(again["tokens"]), 0), "a load gives the weights of its checkpoint"


@pytest.mark.parametrize("mode", ["lora", "full_ft"])
def test_the_gap_between_sampler_and_trainer_is_zero_until_a_step(w, mode):
    run = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 2})
    run.train(2, 1e-3)
    s = Sampler(w, model_path=run.export())
    data = [policy_datum(q) for q in s.sample(extra={"num_samples": 3}, max_tokens=8, seed=4)["sequences"]]
    gap = lambda got: got["metrics"]["logprob_gap:max"]
    for loss in ("importance_sampling", "ppo_clip", "grpo"):
        assert gap(run.forward(data, loss)) == 0
    first = run.backward(data, "importance_sampling")
    assert gap(first) == 0 and first["result"]["metrics"]["logprob_gap:max"] == 0 and first["metrics"]["ratio"] == 1
    run.step(1e-2)
    after = run.forward(data, "importance_sampling")
    pairs = [(new, old) for d, out in zip(data, after["result"]["loss_fn_outputs"])
             for new, old in list(zip(out["logprobs"]["data"], d["loss_fn_inputs"]["logprobs"]["data"]))[len(PROMPT) - 1:]]
    assert gap(after) == pytest.approx(max(abs(a - b) for a, b in pairs), rel=1e-6) and gap(after) > 1e-3
    assert "logprob_gap:max" not in run.forward(data, "cross_entropy")["metrics"]


@pytest.mark.parametrize("base", ["tiny-llama", "tiny-lfm2"])
def test_fast_numerics_leave_no_gap_either(make_server, base):
    server = make_server(ENV | {"CAIRN_NUMERICS": "fast"}, model=None)
    server.register(MODELS / base)
    w = Weaver(server).connect()
    for mode in ("lora", "full_ft"):
        run = Run(w, base, training_mode=mode, lora_config={"rank": 5, "seed": 2})
        run.train(2, 1e-2)
        s = Sampler(w, model_path=run.export(), base_model=base)
        data = [policy_datum(q) for q in s.sample(extra={"num_samples": 3}, max_tokens=8, seed=4)["sequences"]]
        assert run.forward(data, "importance_sampling")["metrics"]["logprob_gap:max"] == 0
        assert run.backward(data, "importance_sampling")["metrics"]["logprob_gap:max"] == 0
    server.stop()


def test_many_samplers_at_once_give_what_each_gives_alone(w, run):
    samplers = [Sampler(w, base_model="tiny-llama")]
    for _ in range(3):
        run.train(1)
        samplers.append(Sampler(w, model_path=run.export()))
    want = [s.sample(extra={"num_samples": 4}, max_tokens=8, seed=5) for s in samplers]
    got = [None] * len(samplers)

    def ask(i):
        got[i] = samplers[i].sample(extra={"num_samples": 4}, max_tokens=8, seed=5)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(samplers))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert got == want and len({str(x["sequences"]) for x in got}) > 1


def test_scores_under_a_temperature(sampler):
    hot = sampler.logprobs(loss_fn_config={"temperature": 1e6})["prompt_logprobs"][1:]
    assert max(hot) - min(hot) < 1e-3 and math.isclose(hot[0], -math.log(512), rel_tol=1e-3)
    assert sampler.logprobs(return_rollout_token_expert=True)["return_rollout_token_expert_data"] is None


# ---- samples ----

def test_a_sample_has_tokens_text_and_usage(w, sampler):
    r = sampler.sample(max_tokens=6, seed=1)
    q = r["sequences"][0]
    assert len(q["tokens"]) == len(q["logprobs"]) == 6 and q["stop_reason"] == "length" and isinstance(q["text"], str)
    assert r["usage"] == {"prompt_tokens": 8, "completion_tokens": 6, "total_tokens": 14}
    assert q["weight_version"] == r["weight_version"] == sampler.made["checkpoint_id"]
    assert "old_logprobs" not in q and "sampling_masks" not in q and r["prompt_logprobs"] is None


def test_seeds_repeat_and_samples_differ(sampler):
    a = sampler.sample(extra={"num_samples": 5}, max_tokens=8, temperature=1.5, seed=1)
    assert sampler.sample(extra={"num_samples": 5}, max_tokens=8, temperature=1.5, seed=1) == a
    assert len({tuple(q["tokens"]) for q in a["sequences"]}) > 1
    assert sampler.one(max_tokens=8, temperature=1.5, seed=9, sampling_seed=1) == a["sequences"][0]
    assert sampler.one(max_tokens=8, temperature=0.0) == sampler.one(max_tokens=8, top_k=1)


def test_tokens_and_texts_stop_a_sample(sampler):
    g = sampler.one(max_tokens=16, temperature=0.0)
    q = sampler.one(max_tokens=16, temperature=0.0, stop_token_ids=[g["tokens"][3]])
    at = g["tokens"].index(g["tokens"][3])
    assert q["tokens"] == g["tokens"][:at + 1] and q["stop_reason"] == "stop"
    word = g["text"][2:5]
    q = sampler.one(max_tokens=16, temperature=0.0, stop=[word, "\x01never"])
    assert q["stop_reason"] == "stop" and q["text"] == g["text"][:g["text"].index(word)]
    assert q["tokens"] == g["tokens"][:len(q["tokens"])]


def test_prompts_are_scored_beside_samples(sampler):
    r = sampler.sample(max_tokens=2, extra={"prompt_logprobs": True, "topk_prompt_logprobs": 3})
    assert r["prompt_logprobs"] == sampler.logprobs()["prompt_logprobs"]
    assert r["topk_prompt_logprobs"][0] is None
    for row, p in zip(r["topk_prompt_logprobs"][1:], r["prompt_logprobs"][1:]):
        assert len(row) == 3 and row == sorted(row, key=lambda x: -x[1]) and p <= row[0][1]


def test_masks_and_what_was_drawn_from(sampler):
    q = sampler.one(max_tokens=8, temperature=0.7, top_k=5, seed=3, extra={"return_sampling_mask": True, "return_old_logprob": True})
    assert all(1 <= len(m) <= 5 and t in m for m, t in zip(q["sampling_masks"], q["tokens"])) and len(q["old_logprobs"]) == 8
    q = sampler.one(max_tokens=4, seed=3, extra={"return_sampling_mask": True, "return_old_logprob": True})
    assert q["sampling_masks"] == [[]] * 4 and all(abs(a - b) < 1e-5 for a, b in zip(q["old_logprobs"], q["logprobs"]))


def test_score_centering(w, sampler):
    q = sampler.one(max_tokens=4, seed=3, extra={"score_centering": {"head_size": 6, "transport": "inline"}})
    assert q["sampler_logprobs"] == q["logprobs"] and q["sampler_topk_mask"] == [[1] * 6] * 4
    assert q["sampler_distribution"]["schema"] == "behavior/unfiltered/v1"
    for ids, values in zip(q["sampler_topk_ids"], q["sampler_topk_logprobs"]):
        assert len(set(ids)) == 6 and sum(map(math.exp, values)) <= 1 + 1e-5
    bad = sampler.body(temperature=0.5, extra={"score_centering": {"head_size": 6}})
    error(w.call("POST", sampler.path + "/samples", bad), 400, "unsupported_option")


@pytest.mark.parametrize("params,extra,code", [
    ({"temperature": -1}, {}, "invalid_request"), ({"top_p": 0}, {}, "invalid_request"), ({"top_p": 1.5}, {}, "invalid_request"),
    ({"max_tokens": 0}, {}, "invalid_request"), ({"stop": "x"}, {}, "invalid_request"), ({"stop": [""]}, {}, "invalid_request"),
    ({"stop": ["x"] * 17}, {}, "invalid_request"), ({"stop_token_ids": [512]}, {}, "token_out_of_range"),
    ({"seed": "x"}, {}, "invalid_request"), ({}, {"num_samples": 0}, "invalid_request"),
    ({}, {"num_samples": 100000}, "invalid_request"), ({}, {"topk_prompt_logprobs": 1000}, "invalid_request"),
    ({}, {"score_centering": {"head_size": 0}}, "invalid_request"), ({}, {"score_centering": {}}, "invalid_request"),
    ({}, {"score_centering": {"head_size": 4, "transport": "ref"}}, "unsupported_option"),
    ({}, {"return_sampling_mask": True, "sampling_mask_transport": "ref"}, "unsupported_option"),
    ({}, {"prompt": chunks([])}, "invalid_datum"), ({}, {"prompt": chunks([512])}, "token_out_of_range"),
    ({}, {"prompt": 5}, "invalid_datum"), ({}, {"prompt": chunks([1] * 300000)}, "context_length_exceeded")])
def test_a_bad_sample_is_refused(w, sampler, params, extra, code):
    error(w.call("POST", sampler.path + "/samples", sampler.body(extra=extra, **params)), 400, code)


# ---- pauses ----

def control(s, what, body=None):
    return s.w.post(f"{s.path}/{what}-generation", body or {})


def computed(server):
    page = server.get("/metrics").body.decode()
    return [int(re.search(rf"^vllm:{name}_tokens_total\S* (\d+)$", page, re.M).group(1)) for name in ("prompt", "generation")]


def unfinished(w, ops):
    listed = {o["id"] for o in w.get("/operations?limit=100")["items"] if o["status"] in ("pending", "running")}
    return any(op["id"] in listed for op in ops)


def aborted(w, ops):
    return any(w.wait(op)["result"]["sequences"][0]["stop_reason"] == "abort" for op in ops)


def caught(s, mode, bodies, found=unfinished):
    """Samples of these bodies, in the middle of which a pause was made: some tokens were computed, and not all. They come while the
    model is paused, so that none has ended before the last is there; where this client was too slow, all of it is done again."""
    ops = []
    for _ in range(20):
        control(s, "pause", {"mode": "in_place"})
        before = computed(s.w.server)
        ops += [s.w.post(s.path + "/samples", body) for body in bodies]
        control(s, "continue")
        wait_until(lambda: computed(s.w.server)[1] > before[1])
        assert control(s, "pause", {"mode": mode}) == {"ok": True, "status": "paused", "mode": mode}
        if found(s.w, ops[-len(bodies):]):
            return ops
        control(s, "continue")
    raise AssertionError("all samples had always ended before the pause")


def test_an_abort_gives_what_there_is_and_the_rest_waits(w, full):
    whole = full.one(max_tokens=200, temperature=0.0)
    ops = caught(full, "abort", [full.body(max_tokens=200, temperature=0.0)] * 12, aborted)
    for op in ops:
        q = w.wait(op)["result"]["sequences"][0]
        assert q["tokens"] == whole["tokens"][:len(q["tokens"])] and q["stop_reason"] in ("abort", "length", "stop")
    later = w.post(full.path + "/samples", full.body(max_tokens=3, temperature=0.0))
    assert later["status"] == "pending"
    listed = {s: [o["id"] for o in w.get(f"/operations?status={s}")["items"]] for s in ("pending", "running")}
    assert later["id"] in listed["pending"] and later["id"] not in listed["running"]
    assert control(full, "continue") == {"ok": True, "status": "running"}
    assert w.wait(later)["result"]["sequences"][0]["tokens"] == whole["tokens"][:3]


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_other_pauses_change_no_token(w, full, mode):
    want = full.sample(extra={"num_samples": 3}, max_tokens=100, seed=4)
    ops = caught(full, mode, [full.body(extra={"num_samples": 3}, max_tokens=100, seed=4)] * 8)
    for _ in range(2):
        control(full, "continue")
        control(full, "pause", {"mode": mode})
    control(full, "continue")
    assert all(w.wait(op)["result"] == want for op in ops)


def test_what_is_paused_in_place_is_not_computed_again_and_holds_no_slot(own, w, full):
    before = computed(own)
    ops = caught(full, "in_place", [full.body(max_tokens=150, seed=i) for i in range(12)])
    other = Sampler(w, base_model="tiny-llama").one(max_tokens=3, seed=1)["tokens"]
    control(full, "continue")
    got = [w.wait(op)["result"]["sequences"][0]["tokens"] for op in ops]
    after = computed(own)
    assert after[0] - before[0] == (len(ops) + 1) * len(PROMPT) and after[1] - before[1] == sum(map(len, got)) + len(other)


def test_one_kind_of_pause_can_follow_another(w, full):
    want, bodies = full.one(max_tokens=150, seed=9)["tokens"], [full.body(max_tokens=150, seed=9)] * 12
    ops = caught(full, "in_place", bodies)
    for mode in ("retract", "in_place"):
        control(full, "pause", {"mode": mode})
    control(full, "continue")
    assert all(w.wait(op)["result"]["sequences"][0]["tokens"] == want for op in ops)
    ops = caught(full, "in_place", bodies)
    control(full, "pause", {"mode": "abort"})
    assert aborted(w, ops)
    for op in ops:
        q = w.wait(op)["result"]["sequences"][0]
        assert q["tokens"] == want[:len(q["tokens"])] and q["stop_reason"] in ("abort", "length", "stop")
    control(full, "continue")


def test_a_server_stops_while_a_model_is_paused(make_server, tmp_path):
    server = make_server(ENV, model=None, state=tmp_path)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    s = Sampler(w, model_path=Run(w, training_mode="full_ft").export(path="f"))
    control(s, "pause", {"mode": "in_place"})
    assert w.post(s.path + "/samples", s.body(max_tokens=3))["status"] == "pending"
    assert server.stop() == 0, server.log_text()[-3000:]


def test_only_a_full_model_can_be_paused(w, sampler, full):
    error(w.call("POST", sampler.path + "/pause-generation", {"mode": "abort"}), 400, "invalid_request")
    error(w.call("POST", sampler.path + "/continue-generation"), 400, "invalid_request")
    error(w.call("POST", full.path + "/pause-generation", {"mode": "now"}), 400, "invalid_request")
    error(w.call("POST", f"/sampling-sessions/{uuid.uuid4()}/pause-generation", {"mode": "abort"}), 404, "sampling_session_not_found")
