"""GET /metrics: the format, and that the numbers are those of what happened."""
import re

import pytest
from conftest import MODELS
from trainer import Trainer, granted, refused

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')


def scrape(server):
    """{(name, labels): value} of a page that is judged line by line."""
    answer = server.get("/metrics")
    assert answer.status == 200 and answer.header("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.body.endswith(b"\n")
    values, types, helped, name = {}, {}, set(), None
    for line in answer.body.decode().splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helped and len(line.split(" ", 3)[3]) > 3, "one family stands in one place"
            helped.add(name)
        elif line.startswith("# TYPE "):
            assert line.split()[2] == name
            types[name] = line.split()[3]
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            family = re.sub(r"_(bucket|sum|count)$", "", found[1]) if types[name] == "histogram" else found[1]
            assert family == name, line
            labels = tuple(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
            assert (found[1], labels) not in values, line
            values[found[1], labels] = float(found[3])
    for name, kind in types.items():
        if kind == "counter":
            assert name.endswith("_total"), name
        if kind == "histogram":
            check_histogram(name, values)
    return values


def check_histogram(name, values):
    buckets = [(dict(k[1])["le"], v) for k, v in values.items() if k[0] == f"{name}_bucket"]
    assert buckets[-1][0] == "+Inf" and [v for _, v in buckets] == sorted(v for _, v in buckets)
    bounds = [float(le) for le, _ in buckets]
    assert bounds == sorted(bounds)
    assert total(values, f"{name}_count") == buckets[-1][1]


def total(values, family, **labels):
    return sum(v for (n, have), v in values.items() if n == family and set(labels.items()) <= set(have))


@pytest.fixture(scope="module")
def own(make_server):
    return make_server()


def test_requests_and_tokens_are_counted(own):
    before = scrape(own)
    usage = [own.complete("The river ran low", max_tokens=7, temperature=0, logit_bias={"2": -100}).json()["usage"] for _ in range(2)]
    own.chat("hi", max_tokens=1, n=3)
    own.post("/v1/embeddings", {"model": own.model, "input": ["a", "b"]})
    after = scrape(own)

    def grew(name, **labels):
        return total(after, name, **labels) - total(before, name, **labels)

    assert grew("vllm:generation_tokens_total") == 7 + 7 + 3
    assert grew("vllm:request_success_total", finished_reason="length") == 2 + 3 + 2
    assert grew("vllm:request_success_total", finished_reason="abort") == 0
    assert grew("vllm:time_to_first_token_seconds_count") == 3
    assert grew("vllm:inter_token_latency_seconds_count") == 6 + 6
    assert grew("vllm:e2e_request_latency_seconds_count") == grew("vllm:request_queue_time_seconds_count") == 4
    assert grew("vllm:request_generation_tokens_sum") == 17
    assert grew("vllm:prompt_tokens_total") >= usage[0]["prompt_tokens"]
    assert grew("cairn_engine_steps_total") >= 7 and grew("cairn_http_requests_total") == 5
    assert {dict(k[1])["model_name"] for k in after if k[0] == "vllm:num_requests_running"} == {own.model}
    assert total(after, "process_open_fds") > 5 and total(after, "process_resident_memory_bytes") > 1 << 20


def test_known_beginnings_are_hits(own):
    ids = [3 + i % 400 for i in range(200)]
    own.complete(ids, max_tokens=1, temperature=0)
    before = scrape(own)
    assert own.complete(ids, max_tokens=1, temperature=0).json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128
    after = scrape(own)
    asked = total(after, "vllm:prefix_cache_queries_total") - total(before, "vllm:prefix_cache_queries_total")
    known = total(after, "vllm:prefix_cache_hits_total") - total(before, "vllm:prefix_cache_hits_total")
    assert asked == 200 and 128 <= known < 200


def test_weights_have_numbers_of_their_own(make_server):
    server = make_server()
    assert total(scrape(server), "cairn_weights_state", state="clean") == 1
    trainer = Trainer(server)
    trainer.do("quiesce")
    now = scrape(server)
    assert total(now, "cairn_weights_held") == total(now, "cairn_weights_attached") == 1
    assert total(now, "cairn_weights_pause_seconds_count") == 0
    trainer.do("commit-begin")
    assert total(scrape(server), "cairn_weights_state", state="writing") == 1
    trainer.do("commit-end")
    trainer.do("resume")
    now = scrape(server)
    assert total(now, "cairn_weights_pause_seconds_count") == 1 and total(now, "cairn_weights_pause_seconds_sum") > 0
    assert total(now, "cairn_weights_commits_total") == total(now, "cairn_weights_unsaved_commits") == 1
    saved = granted(trainer.save("metrics", 1), 201)
    now = scrape(server)
    assert total(now, "cairn_weights_saved_bytes_total") == saved["bytes"] > 1000
    assert total(now, "cairn_weights_snapshot_seconds_count") == total(now, "cairn_weights_save_seconds_count") == 1
    assert total(now, "cairn_weights_operations_total", operation="weights_save", outcome="accepted") == 1
    assert total(now, "cairn_model_info", name=saved["name"], origin="checkpoint") == 1
    trainer.do("detach")
    before = total(now, "cairn_weights_loads_total")
    file = server.checkpoints / saved["path"] / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    refused(server.weights("load", {"name": saved["name"]}), 422, "CHECKPOINT_HASH_MISMATCH")
    now = scrape(server)
    assert total(now, "cairn_weights_verify_failures_total") == 1 and total(now, "cairn_weights_loads_total") == before
    assert total(now, "cairn_refusals_total", face="api", code="CHECKPOINT_HASH_MISMATCH", status="422") == 1
    granted(server.weights("load", {"model_id": server.row}))
    now = scrape(server)
    assert total(now, "cairn_weights_loads_total") == before + 1
    assert total(now, "cairn_weights_operations_total", operation="weights_load", outcome="refused") == 1
    server.stop()


def test_refusals_of_v1_are_counted_by_code(own):
    before = total(scrape(own), "cairn_refusals_total", face="v1", code="invalid_parameter")
    own.complete(temperature=9)
    own.complete(temperature=-1)
    assert total(scrape(own), "cairn_refusals_total", face="v1", code="invalid_parameter") == before + 2


def test_names_with_quotes_do_not_break_the_page(make_server):
    server = make_server(model=None)
    row = server.register(MODELS / "tiny-llama", custom_name='a"b\\c\nd')
    server.load(row["id"])
    assert total(scrape(server), "cairn_model_info", name='a\\"b\\\\c\\nd') == 1
    server.stop()


def test_refusals_of_the_training_api_are_counted(own):
    count = lambda: total(scrape(own), "cairn_refusals_total", face="weaver", code="unauthorized", status="401")
    before = count()
    assert own.get("/api/v1/models").status == 401
    assert count() == before + 1
