"""Edges of the training API: traces that are none, weights that cancel, pages past the end, names with U+0000, aborts."""
import http.client
import json
import math
from urllib.parse import urlsplit

import pytest
from conftest import MODELS, refusing_writes
from test_weaver_sampling import PROMPT, Sampler, chunks, control
from test_weaver_training import form, pack_of
from weaver_http import ENV, Run, Weaver, datum, error, trace


@pytest.fixture(scope="module")
def own(make_server):
    server = make_server(ENV, model=None)
    server.register(MODELS / "tiny-llama")
    return server


@pytest.fixture(scope="module")
def run(w):
    return Run(w, lora_config={"rank": 4, "seed": 7})


# ---- requests ----

@pytest.mark.parametrize("text", [
    "", "0", "00-" + 32 * "0" + "-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-" + 16 * "0" + "-01",
    "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"])
def test_a_traceparent_that_names_no_trace_repeats_nothing(w, text):
    """What a client without tracing sends is the same for every call: each of them counts."""
    head = {"traceparent": text}
    made = [w.post("/quota/requests", {"amount_usd": "1"}, 201, headers=head)["id"] for _ in range(2)]
    assert made[0] != made[1]
    t = trace()
    assert w.post("/quota/requests", {"amount_usd": "1"}, trace=t) == w.post("/quota/requests", {"amount_usd": "1"}, trace=t)


def test_every_method_and_address_below_api_v1_is_answered_in_the_form_of_the_face(w):
    for method in ("PUT", "PATCH", "DELETE"):
        answer = w.call(method, "/sessions", {} if method != "DELETE" else None)
        error(answer, 405, "method_not_allowed")
        assert answer.header("Allow") == "POST"
    error(w.call("PUT", "/nothing"), 404, "route_not_found")
    error(w.call("GET", "/"), 404, "route_not_found")
    error(Weaver(w.server, None).call("PUT", "/sessions"), 401, "unauthorized")


def test_the_total_of_a_list_does_not_depend_on_the_page(w, run):
    w.post("/quota/requests", {"amount_usd": "2.50"}, 201)
    run.save(name="counted")
    for path in ("/quota/requests", "/models", "/checkpoints", "/operations", "/supported-models"):
        total = w.get(path + "?limit=1")["pagination"]["total_count"]
        page = w.get(path + f"?limit=5&offset={total + 3}")
        assert total > 0 and page["items"] == [] and page["pagination"] == {"total_count": total, "limit": 5, "offset": total + 3}


@pytest.mark.parametrize("amount", ["", "five", "1.", ".5", "-1", "1e3", "1 ", "1.5.2", "9" * 40, 5])
def test_an_amount_is_a_decimal_number(w, amount):
    error(w.call("POST", "/quota/requests", {"amount_usd": amount}), 400, "invalid_request")


def test_operations_are_asked_for_by_a_status_that_there_is(w):
    for status in ("pending", "running", "done", "error"):
        assert all(o["status"] == status for o in w.get(f"/operations?status={status}")["items"])
    error(w.call("GET", "/operations?status=completed"), 400, "invalid_request")


@pytest.mark.parametrize("name", ["a\0b", "a\u0085b", "\0"])
def test_a_name_is_never_cut_at_a_control_character(w, run, name):
    before = run.checkpoints()
    error(w.call("POST", run.path + "/checkpoints", {"type": "weight", "name": name}), 400, "invalid_name")
    run.seq += 1
    error(w.call("POST", run.path + "/export-sampler", {"seq_id": run.seq, "path": name}), 400, "invalid_name")
    assert run.checkpoints() == before


def test_a_text_with_u0000_names_nothing(w, run):
    answer = w.call("POST", f"/sessions/{w.session}/models", {"model_seq_id": 1, "base_model": "tiny-llama\0x"})
    error(answer, 400, "invalid_request")
    data = [{**datum(1), "datum_id": "a\0b"}, {**datum(2), "datum_id": "a\0c"}]
    error(w.call("POST", run.path + "/forward-passes", run.forward_body(data)), 400, "invalid_datum")


@pytest.mark.parametrize("part", ["manifest", "tensor_pack"])
def test_a_form_with_a_part_twice_is_refused(w, run, part):
    wire = pack_of([datum(1)])
    body, headers = form(run, wire[0], wire[1])
    assert w.call("POST", run.path + "/forward-passes", body, headers=headers).status in (200, 202)
    run.seq += 1
    end = body.rindex(b"\r\n--")
    begin = body.index(b"--weaver-")
    mark = body[begin:body.index(b"\r\n", begin)]
    again = body[:end] + b"\r\n" + mark + f'\r\nContent-Disposition: form-data; name="{part}"\r\n\r\n{{}}'.encode() + body[end:]
    refused = error(w.call("POST", run.path + "/forward-passes", again, headers=headers), 400, "invalid_request")
    assert part in refused["message"] and "twice" in refused["message"]


# ---- numbers ----

def weighted(seed, weight, **inputs):
    return datum(seed, weights={"data": weight, "dtype": "float32"}, **inputs)


def norm_of(w, loss, *calls, **config):
    """The gradient's norm after these calls, and the last call's metrics."""
    run = Run(w, lora_config={"rank": 4, "seed": 5})
    for data in calls:
        metrics = run.backward(data, loss, **config)["metrics"]
    step = run.step(0.0)["metrics"]
    w.post(run.path + "/terminate")
    return step["grad_norm"], step["skipped"], metrics


def test_weights_that_cancel_train_where_nothing_is_divided_by_them(w):
    both = norm_of(w, "cross_entropy", [weighted(1, 1.0), weighted(2, -1.0)], reduction="sum")
    apart = norm_of(w, "cross_entropy", [weighted(1, 1.0)], [weighted(2, -1.0)], reduction="sum")
    assert both[1] == 0 and both[0] == apart[0] > 0 and both[2]["weight:sum"] == 0 and both[2]["loss"] != 0
    old = {"logprobs": {"data": -5.0, "dtype": "float32"}, "advantages": {"data": 1.0, "dtype": "float32"}}
    grpo = norm_of(w, "grpo", [weighted(1, 1.0, **old), weighted(2, -1.0, **old)], clip_high_threshold=1e30, clip_low_threshold=0)
    assert grpo[1] == 0 and grpo[0] > 0
    assert norm_of(w, "cross_entropy", [weighted(1, 1.0), weighted(2, -1.0)])[:2] == (0, 1)  # the mean over a weight of 0
    assert norm_of(w, "cross_entropy", [weighted(1, 0.0)], reduction="sum")[:2] == (0, 1)


OLD = {"logprobs": {"data": -5.0, "dtype": "float32"}, "advantages": {"data": 0.0, "dtype": "float32"}}


def entropies(run, datums):
    """Of each position, from the log-probabilities of the whole vocabulary."""
    total = [[0.0] * len(d["loss_fn_inputs"]["target_tokens"]["data"]) for d in datums]
    for v in range(512):
        data = [{**d, "loss_fn_inputs": {"target_tokens": {"data": [v] * len(t), "dtype": "int64"}}} for d, t in zip(datums, total)]
        for t, o in zip(total, run.forward(data)["result"]["loss_fn_outputs"]):
            for i, lp in enumerate(o["logprobs"]["data"]):
                t[i] -= math.exp(lp) * lp
    return total


def test_an_entropy_bonus_is_part_of_the_loss(w, run):
    data = [datum(1, 5), datum(2, 3, weights={"data": [1.0, 0.0, 2.0], "dtype": "float32"})]
    want = entropies(run, data)
    plain = run.forward(data, "cross_entropy")
    got = run.forward(data, "cross_entropy", entropy_coeff=0.3)
    mean = (sum(want[0]) + want[1][0] + 2 * want[1][2]) / 8
    assert "entropy" not in plain["metrics"] and got["metrics"]["entropy"] == pytest.approx(mean, abs=1e-5)
    assert got["metrics"]["loss"] == pytest.approx(plain["metrics"]["loss"] - 0.3 * mean, abs=1e-5)
    a, b = (r["result"]["loss_fn_outputs"][1]["elementwise_loss"]["data"] for r in (plain, got))
    assert b[2] == pytest.approx(a[2] - 0.3 * 2 * want[1][2], abs=1e-5) and b[1] == a[1] == 0
    for loss, inputs in (("surrogate", {"surrogate_weights": {"data": 1.0, "dtype": "float32"}}), ("forward_logprob", {})):
        same = [datum(1, 5, **inputs)]
        assert run.forward(same, loss, entropy_coeff=5) == run.forward(same, loss)
    for bad in ("x", 1e39, []):
        error(w.call("POST", run.path + "/forward-passes", run.forward_body(data, "cross_entropy", entropy_coeff=bad)), 400, "invalid_request")


@pytest.mark.parametrize("mode", ["lora", "full_ft"])
@pytest.mark.parametrize("coeff", [1.0, -1.0])
def test_an_entropy_bonus_trains(w, mode, coeff):
    """Without advantages nothing else moves the weights: the entropy goes where its sign says."""
    run, seen = Run(w, training_mode=mode, lora_config={"rank": 4, "seed": 5}), []
    for _ in range(6):
        seen.append(run.backward([datum(1, **OLD)], "importance_sampling", entropy_coeff=coeff)["metrics"]["entropy"])
        run.step(3e-3 if mode == "lora" else 3e-4, weight_decay=0)
    assert all((b - a) * coeff > 0 for a, b in zip(seen, seen[1:])), seen
    w.post(run.path + "/terminate")


@pytest.mark.parametrize("fields", [{"eps": 0}, {"eps": 1e-60}, {"eps": 1e60}, {"learning_rate": 1e39}, {"learning_rate": 1e38, "beta1": 0.99},
                                    {"learning_rate": 1e30, "weight_decay": 1e30}])
def test_a_step_that_single_precision_cannot_do_is_refused_when_it_is_asked(w, run, fields):
    run.backward()
    error(w.call("POST", run.path + "/optimizer-steps", run.adam_body(**fields)), 400, "invalid_request")


# ---- saves and exports ----

def test_a_save_whose_row_cannot_be_written_leaves_no_files(own, w, run):
    folder = own.state / "weaver" / run.id
    run.save(name="before")
    before = sorted(folder.iterdir())
    with refusing_writes(own, "UPDATE ON weaver_checkpoints"):
        w.wait(w.post(run.path + "/checkpoints", {"type": "weight", "name": "after"}), "error")
    assert sorted(folder.iterdir()) == before


def test_an_export_that_failed_is_not_there_to_be_waited_for(own, w, run):
    c = run.save(name="damaged")
    (own.state / "weaver" / run.id / c["id"] / "adapter_model.safetensors").write_bytes(b"x" * 100)
    w.wait(w.post(f"/checkpoints/{c['id']}/export", {"merge_adapter": True}), "error")
    a = w.get(f"/checkpoints/{c['id']}/artifacts")["items"][0]
    assert a["status"] == "error" and a["error"]
    refused = error(w.call("GET", f"/artifacts/{a['id']}/download"), 404, "artifact_not_found")
    assert refused["retryable"] is False and a["error"][:40] in refused["message"]


def test_a_range_behind_the_end_tells_the_size(w, run):
    a = w.run(f"/checkpoints/{run.save(name='ranges')['id']}/export", {})
    f = w.get(f"/artifacts/{a['id']}/download")["files"][0]
    url = urlsplit(f["url"])
    c = http.client.HTTPConnection(url.netloc)
    c.request("GET", f"{url.path}?{url.query}", headers={"Range": f"bytes={f['size']}-"})
    answer = c.getresponse()
    assert answer.status == 416 and answer.getheader("Content-Range") == f"bytes */{f['size']}"
    assert json.loads(answer.read())["error"] == "range_not_satisfiable"
    c.request("HEAD", f"{url.path}?{url.query}")
    answer = c.getresponse()
    assert (answer.status, answer.read(), answer.getheader("Content-Length")) == (200, b"", str(f["size"]))
    c.close()


# ---- aborts ----

def test_an_abort_never_tells_log_probabilities_that_were_not_computed(w):
    run = Run(w, training_mode="full_ft")
    full = Sampler(w, model_path=run.export(path="f"))
    want, scored = full.logprobs()["prompt_logprobs"], full.sample(max_tokens=3, seed=1, extra={"prompt_logprobs": True, "topk_prompt_logprobs": 2})
    assert all(x < 0 for x in want[1:]) and scored["prompt_logprobs"] == want
    control(full, "pause", {"mode": "in_place"})
    scores = w.post(full.path + "/logprobs", {"prompt": chunks(PROMPT)})
    sample = w.post(full.path + "/samples", full.body(max_tokens=3, extra={"prompt_logprobs": True, "topk_prompt_logprobs": 2}))
    control(full, "pause", {"mode": "abort"})
    got = w.wait(sample)["result"]
    assert got["sequences"][0]["tokens"] == [] and got["sequences"][0]["stop_reason"] == "abort"
    assert got["prompt_logprobs"] is None and got["topk_prompt_logprobs"] is None
    assert w.get("/operations?status=pending")["items"][0]["id"] == scores["id"]
    control(full, "continue")
    assert w.wait(scores)["result"]["prompt_logprobs"] == want
    w.post(run.path + "/terminate")
