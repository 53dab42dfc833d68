"""LoRA adapters beside the resident (spec 8): refusals in order, what they change and what they do not."""
import json
import shutil
import struct
import threading
import time

import pytest
from conftest import OPERATOR, ROOT, TRAINER
from trainer import Trainer, ask, audit_lines, granted, load, read_safetensors, refused, status

LORA = ROOT / "tests/vectors/golden/tiny-llama/lora"


def copy_adapter(home, name, **settings):
    shutil.copytree(LORA, home / name)
    path = home / name / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


@pytest.fixture(scope="module")
def own(make_server, tmp_path_factory):
    home = tmp_path_factory.mktemp("adapters")
    copy_adapter(home, "lora")
    copy_adapter(home, "double", lora_alpha=16)
    copy_adapter(home, "dora", use_dora=True)
    copy_adapter(home, "rank", r=5)
    copy_adapter(home, "..hidden")
    server = make_server({"ADAPTER_DIR": str(home), "WEIGHTS_DRAIN_TIMEOUT_S": "5"})
    server.home = home
    return server


def call(server, route, body=None, token=TRAINER, attachment=None, lease=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if attachment:
        headers["X-miLLM-Attachment"] = attachment
    if lease:
        headers["X-miLLM-Lease"] = lease
    return server.post(f"/api/adapters/{route}", {} if body is None else body, headers=headers)


def apply(server, name="lora", **kw):
    return call(server, "apply", {"name": name}, **kw)


def remove(server, **kw):
    return granted(call(server, "remove", **kw))["removed"]


def applied(server):
    return granted(server.get("/api/adapters"))["applied"]


def test_the_list_says_what_fits(own):
    found = {a["name"]: a for a in granted(own.get("/api/adapters"))["adapters"]}
    assert sorted(found) == ["dora", "double", "lora", "rank"]  # no hidden names
    assert found["lora"]["applicable"] is True and found["lora"]["problem"] is None
    assert (found["lora"]["r"], found["lora"]["lora_alpha"]) == (4, 8) and found["lora"]["bytes"] > 1000
    assert found["dora"]["applicable"] is False and "use_dora" in found["dora"]["problem"]
    assert found["rank"]["applicable"] is False and "shape" in found["rank"]["problem"]


def test_applied_it_changes_answers_and_removed_it_leaves_the_very_same_ones(own):
    plain, header = ask(own)
    got = granted(apply(own))
    assert (got["name"], got["scale"]) == ("lora", 1.0) and got["modules"] > 0 and got["applied_at"].endswith("Z")
    with_it, same_header = ask(own)
    assert with_it != plain and same_header == header and applied(own) == got
    assert status(own)["model"]["adapter"] == "lora" and status(own)["steps_since_load"] == 0
    answer = own.complete(max_tokens=1)
    assert answer.header("X-miLLM-Adapter") == '"lora"' and answer.json()["model"] == "tiny-llama"
    stream = own.post("/v1/completions", {"model": "tiny-llama", "prompt": "x", "max_tokens": 1, "stream": True})
    assert stream.header("X-miLLM-Adapter") == '"lora"'
    assert granted(apply(own, "double"))["name"] == "double"  # takes the place of the other
    double, _ = ask(own)
    assert double != with_it
    assert granted(call(own, "apply", {"name": "lora", "scale": 2}))["scale"] == 2
    assert ask(own)[0] == double  # twice alpha or twice the scale
    granted(call(own, "apply", {"name": "lora", "scale": 0}))
    assert ask(own)[0] == plain
    assert remove(own) == "lora" and remove(own) is None
    assert ask(own)[0] == plain and own.complete(max_tokens=1).header("X-miLLM-Adapter") is None
    assert applied(own) is None and status(own)["model"]["adapter"] is None


def test_it_changes_embeddings_too(own):
    def embed():
        answer = own.post("/v1/embeddings", {"model": own.model, "input": "The river ran low"})
        return answer.json()["data"][0]["embedding"], answer.header("X-miLLM-Adapter")

    plain, none = embed()
    granted(apply(own))
    with_it, name = embed()
    assert (none, name) == (None, '"lora"') and with_it != plain
    remove(own)
    assert embed() == (plain, None)


def test_refusals_come_in_their_order(own):
    lease = granted(own.post(f"/api/models/{own.row}/lease", {"holder": "h", "reason": "r"}), 201)["lease_id"]
    refused(apply(own, token=None), 401, "UNAUTHORIZED")
    refused(call(own, "apply", {"name": "none", "x": 1}), 422, "VALIDATION_ERROR")
    refused(call(own, "apply", {}), 422, "VALIDATION_ERROR")
    refused(call(own, "apply", {"name": "lora", "scale": "2"}), 422, "VALIDATION_ERROR")
    refused(call(own, "remove", {"name": "lora"}), 422, "VALIDATION_ERROR")
    for name in ("none", "../lora", "lora/../lora", "..hidden", "", "x" * 129):
        refused(apply(own, name), 404, "ADAPTER_NOT_FOUND", name=name)
    refused(apply(own, "dora"), 400, "ADAPTER_INVALID", reason="config", field="use_dora")
    details = refused(apply(own, "rank"), 400, "ADAPTER_INCOMPATIBLE", reason="shape")
    assert details["tensors"] and all(".lora_" in name for name in details["tensors"])
    details = refused(apply(own), 409, "MODEL_LEASED", holder="h")
    holder = Trainer(own)
    refused(apply(own), 409, "ALREADY_ATTACHED")  # before the lease
    refused(call(own, "remove"), 409, "ALREADY_ATTACHED")
    refused(apply(own, token=OPERATOR), 409, "MODEL_LEASED")
    granted(apply(own, attachment=holder.id, lease=lease))
    assert remove(own, token=OPERATOR) == "lora"  # a lease does not keep one on
    holder.do("quiesce")
    refused(apply(own, token=OPERATOR, lease=lease), 409, "PAUSE_IN_PROGRESS", held_by="quiesce")
    granted(apply(own, attachment=holder.id, lease=lease))  # inside the own quiesce
    assert status(own)["serving"] == "quiesced"
    holder.do("commit-begin")
    refused(call(own, "remove", attachment=holder.id), 409, "WEIGHTS_NOT_CLEAN", weights_state="writing")
    holder.do("commit-end")
    holder.do("resume")
    assert applied(own)["name"] == "lora"  # a commit leaves it
    assert remove(own, attachment=holder.id) == "lora"
    holder.detach()
    granted(own.call("DELETE", f"/api/models/{own.row}/lease", headers={"X-miLLM-Lease": lease}))
    granted(load(own, model_id=own.row))


def test_a_save_holds_the_base_and_a_load_removes_the_adapter_first(own):
    plain, _ = ask(own)
    holder = Trainer(own)
    before = holder.digest()
    granted(apply(own, attachment=holder.id))
    saved = granted(holder.save("adapted", 1), 201)
    assert holder.digest() == before  # the arena is never changed
    step = own.checkpoints / "adapted/step-000001"
    assert not [p for p in step.iterdir() if "adapter" in p.name]
    raw = (step / "model.safetensors").read_bytes()
    assert raw == bytes(holder.arena[:len(raw)]) and read_safetensors(step / "model.safetensors")
    assert status(own)["model"]["adapter"] == "lora"  # a rename leaves it
    refused(load(own, holder.id, path="adapted/step-000009"), 404, "CHECKPOINT_NOT_FOUND")
    assert applied(own)["name"] == "lora"
    granted(load(own, holder.id, path=saved["path"]))
    assert applied(own) is None and status(own)["model"]["adapter"] is None
    assert ask(own)[0] == plain
    granted(apply(own, attachment=holder.id))
    holder.detach()
    assert applied(own)["name"] == "lora"  # and so does a detach
    granted(load(own, path=saved["path"]))  # nothing attached: a swap
    assert applied(own) is None and ask(own)[0] == plain
    granted(apply(own))
    granted(load(own, model_id=own.row))
    assert applied(own) is None and ask(own)[0] == plain


def test_an_unload_drops_it_and_without_a_model_there_is_nothing_to_apply_to(own):
    granted(apply(own))
    granted(own.post(f"/api/models/{own.row}/unload"))
    assert applied(own) is None
    refused(apply(own), 400, "MODEL_NOT_LOADED")
    refused(call(own, "remove"), 400, "MODEL_NOT_LOADED")
    assert all(a["applicable"] is False for a in granted(own.get("/api/adapters"))["adapters"])
    own.load(own.row)
    assert status(own)["model"]["adapter"] is None


def test_files_that_are_no_adapter_are_refused(own):
    copy_adapter(own.home, "bad-file")
    (own.home / "bad-file/adapter_model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    refused(apply(own, "bad-file"), 400, "ADAPTER_INVALID", reason="weights")
    (own.home / "pickled").mkdir()
    (own.home / "pickled/adapter_model.bin").write_bytes(b"x")
    refused(apply(own, "pickled"), 400, "ADAPTER_INVALID", reason="config")
    shutil.rmtree(own.home / "bad-file")
    shutil.rmtree(own.home / "pickled")


def test_every_call_leaves_one_audit_line(own):
    before = len(audit_lines(own))
    granted(apply(own))
    refused(apply(own, "none"), 404, "ADAPTER_NOT_FOUND")
    refused(apply(own, token=None), 401, "UNAUTHORIZED")
    remove(own)
    lines = audit_lines(own)[before:]
    assert [(x["operation"], x["outcome"], x["code"]) for x in lines] == [
        ("weights_adapter_apply", "accepted", None), ("weights_adapter_apply", "refused", "ADAPTER_NOT_FOUND"),
        ("weights_adapter_apply", "refused", "UNAUTHORIZED"), ("weights_adapter_remove", "accepted", None)]



def test_an_answer_has_one_adapter_from_its_first_token_to_its_last(own):
    """Clients ask while the adapter comes and goes: each answer is one of the two, and its header says which."""
    body = {"model": "tiny-llama", "prompt": "The river ran low", "max_tokens": 24, "temperature": 0, "logprobs": 1}
    numbers = lambda answer: answer.json()["choices"][0]["logprobs"]["token_logprobs"]
    known = {None: numbers(own.post("/v1/completions", body))}
    granted(apply(own))
    known['"lora"'] = numbers(own.post("/v1/completions", body))
    assert known[None] != known['"lora"']
    stop, wrong, seen = threading.Event(), [], []

    def client():
        while not stop.is_set():
            answer = own.post("/v1/completions", body)
            name = answer.header("X-miLLM-Adapter")
            seen.append(name)
            if answer.status != 200 or numbers(answer) != known[name]:
                wrong.append(answer)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for c in clients:
        c.start()
    for _ in range(10):
        remove(own)
        granted(apply(own))
    stop.set()
    for c in clients:
        c.join()
    remove(own)
    assert not wrong and len(set(seen)) == 2, (wrong[:1], set(seen))


def test_running_requests_that_do_not_end_are_waited_for_only_so_long(make_server, own):
    server = make_server({"ADAPTER_DIR": str(own.home), "WEIGHTS_DRAIN_TIMEOUT_S": "0.01"})
    answers = []
    ask_long = lambda: answers.append(server.post("/v1/completions", {
        "model": "tiny-llama", "prompt": "x", "max_tokens": 200, "n": 8, "best_of": 8, "logit_bias": {}}))
    for _ in range(20):
        talkers = [threading.Thread(target=ask_long) for _ in range(8)]
        for t in talkers:
            t.start()
        time.sleep(0.02)
        answer = apply(server)
        for t in talkers:
            t.join()
        if answer.status != 200:
            break
        remove(server)
    refused(answer, 409, "MODEL_BUSY", reason="drain_timeout")
    assert applied(server) is None and all(a.status == 200 for a in answers)
    granted(apply(server))
