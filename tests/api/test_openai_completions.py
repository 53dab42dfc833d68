"""/v1/completions: golden answers, ids, n and best_of, echo, scoring, stops (7.5, S22, S25, S26)."""
import re

import pytest
from conftest import check_error
from golden import Golden, near


@pytest.fixture(scope="module")
def golden():
    return Golden("tiny-llama")


def text(answer, i=0):
    assert answer.status == 200, answer
    return answer.json()["choices"][i]["text"]


def hot(**fields):
    return {"temperature": 1.5, "max_tokens": 24, **fields}


def test_an_answer_has_its_shape_and_headers(server):
    answer = server.complete(max_tokens=4)
    body = answer.json()
    assert re.fullmatch(r"cmpl-[0-9a-f]{24}", body["id"]) and body["object"] == "text_completion"
    assert body["model"] == server.model and body["choices"][0]["logprobs"] is None
    assert body["choices"][0]["finish_reason"] in ("stop", "length")
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    assert re.fullmatch(r"millm:.+@.+:.+/.+:transformers", body["system_fingerprint"])
    assert answer.header("X-miLLM-Model") == f'"{server.model}";origin=model;commits=0'
    assert answer.header("X-miLLM-Backend") == "cbm" and answer.header("X-miLLM-Seed") is None
    assert answer.header("X-miLLM-Batch") is None


def test_greedy_answers_are_those_of_the_reference(server, golden):
    for entry in golden.json["greedy"]:
        prompt = golden.json["prompts"][entry["prompt"]]
        for given in (prompt["text"], prompt["ids"], [prompt["ids"]]):
            answer = server.complete(given, temperature=0, max_tokens=len(entry["ids"]))
            golden.check_greedy(entry, text(answer))
            assert answer.json()["usage"]["prompt_tokens"] == len(prompt["ids"])


def test_a_list_of_prompts_gives_a_choice_each_in_order(server, golden):
    prompts = [p["text"] for p in golden.json["prompts"]]
    both = server.complete(prompts, temperature=0, max_tokens=8).json()
    singles = [server.complete(p, temperature=0, max_tokens=8).json() for p in prompts]
    assert [c["index"] for c in both["choices"]] == list(range(len(prompts)))
    assert [c["text"] for c in both["choices"]] == [s["choices"][0]["text"] for s in singles]
    for key in ("prompt_tokens", "completion_tokens"):
        assert both["usage"][key] == sum(s["usage"][key] for s in singles)


def test_one_request_may_bring_thousands_of_prompts(server):
    prompts = [f"The river ran low {i}" for i in range(1000)]
    choices = server.complete(prompts, temperature=0, max_tokens=1).json()["choices"]
    assert [c["index"] for c in choices] == list(range(1000))
    for i in (0, 128, 999):
        assert choices[i]["text"] == text(server.complete(prompts[i], temperature=0, max_tokens=1))
    check_error(server.complete(["a"] * 4097), 400, "invalid_parameter", "prompt")
    check_error(server.complete(["a"] * 2049, n=2), 400, "invalid_parameter", "n")
    check_error(server.complete(n=257), 400, "invalid_parameter", "n")


def test_n_choices_differ_and_a_seed_repeats_them(server):
    first = server.complete(n=3, **hot(seed=7)).json()
    texts = [c["text"] for c in first["choices"]]
    assert len(set(texts)) == 3
    assert texts == [c["text"] for c in server.complete(n=3, **hot(seed=7)).json()["choices"]]
    assert texts[0] == text(server.complete(**hot(seed=7)))
    assert first["usage"]["prompt_tokens"] == server.complete(max_tokens=1).json()["usage"]["prompt_tokens"]
    assert len({text(server.complete(**hot())) for _ in range(5)}) > 1


def test_a_seed_is_echoed_and_may_be_large(server):
    assert server.complete(max_tokens=1, seed=2**63 - 1).header("X-miLLM-Seed") == f'{2**63 - 1};scope="request"'


def test_best_of_gives_the_likeliest_of_its_samples(server):
    three = server.complete(n=3, logprobs=0, **hot(seed=7)).json()["choices"]
    best = server.complete(n=1, best_of=3, **hot(seed=7)).json()["choices"]
    mean = {c["text"]: sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"]) for c in three}
    assert len(best) == 1 and best[0]["logprobs"] is None
    assert mean[best[0]["text"]] == max(mean.values())
    check_error(server.complete(n=3, best_of=2), 400, "invalid_parameter", "best_of")


def test_a_stop_string_never_appears_wherever_it_is_cut(server):
    whole = text(server.complete(temperature=0, max_tokens=48))
    for at in range(2, len(whole) - 3, 5):
        for size in (1, 2, 3):
            stop = whole[at:at + size]
            if "\ufffd" in stop:
                continue
            answer = server.complete(temperature=0, max_tokens=48, stop=[stop]).json()["choices"][0]
            assert (answer["text"], answer["finish_reason"]) == (whole[:whole.find(stop)], "stop")


def test_a_stop_is_searched_in_new_text_only(server):
    answer = server.complete("abc", temperature=0, max_tokens=4, stop="abc", echo=True)
    assert text(answer).startswith("abc")


def test_a_stop_token_ends_the_answer_before_itself(server, golden):
    entry = golden.json["greedy"][0]
    prompt = golden.json["prompts"][entry["prompt"]]["ids"]
    answer = server.complete(prompt, temperature=0, max_tokens=16, stop_token_ids=[entry["ids"][3]]).json()
    at = entry["ids"].index(entry["ids"][3])
    assert answer["choices"][0]["text"].rstrip("\ufffd") == golden.vocab.decode(entry["ids"][:at]).rstrip("\ufffd")
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == at + 1


def check_offsets(lp, whole):
    assert lp["text_offset"][0] == 0 and lp["text_offset"] == sorted(lp["text_offset"])
    for token, at in zip(lp["tokens"], lp["text_offset"]):
        if token.isascii() and token.isprintable() and not token.startswith("<"):
            assert whole[at:at + len(token)] == token


def test_log_probabilities_are_those_of_the_reference(server, golden):
    for entry in golden.json["greedy"]:
        prompt = golden.json["prompts"][entry["prompt"]]["text"]
        choice = server.complete(prompt, logprobs=2, max_tokens=16, temperature=0, return_tokens_as_token_ids=True).json()["choices"][0]
        lp = choice["logprobs"]
        ties = (i for i, (m, t) in enumerate(zip(entry["margins"], entry["ids"])) if m < 1e-3 or t in golden.vocab.eos)
        keep = min(next(ties, 16), 16)
        assert lp["tokens"][:keep] == [f"token_id:{i}" for i in entry["ids"][:keep]]
        near(entry["logprobs"][:keep], lp["token_logprobs"][:keep])
        assert all(2 <= len(top) <= 3 for top in lp["top_logprobs"])
    plain = server.complete(golden.json["prompts"][0]["text"], logprobs=2, max_tokens=16, temperature=0).json()["choices"][0]
    check_offsets(plain["logprobs"], plain["text"])


def test_scoring_gives_the_prompts_own_log_probabilities(server, golden):
    for k, prompt in enumerate(golden.json["prompts"]):
        for given in (prompt["text"], prompt["ids"]):
            body = server.complete(given, max_tokens=0, echo=True, logprobs=1).json()
            lp = body["choices"][0]["logprobs"]
            assert body["usage"]["completion_tokens"] == 0 and body["choices"][0]["finish_reason"] == "length"
            assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
            near(golden.tensor(f"prompt{k}.logprobs"), lp["token_logprobs"][1:])
    both = server.complete([p["text"] for p in golden.json["prompts"][:2]], max_tokens=0, echo=True, logprobs=0, n=2).json()["choices"]
    for i in (2, 3):
        near(golden.tensor("prompt1.logprobs"), both[i]["logprobs"]["token_logprobs"][1:])


def test_echo_puts_the_prompt_before_the_answer(server, golden):
    prompt, entry = golden.json["prompts"][0], golden.json["greedy"][0]
    plain = text(server.complete(prompt["text"], temperature=0, max_tokens=6))
    assert text(server.complete(prompt["text"], temperature=0, max_tokens=6, echo=True)) == prompt["text"] + plain
    choice = server.complete(prompt["text"], max_tokens=4, echo=True, logprobs=0, temperature=0).json()["choices"][0]
    lp = choice["logprobs"]
    near(golden.tensor("prompt0.logprobs"), lp["token_logprobs"][1:len(prompt["ids"])])
    near(entry["logprobs"][:4], lp["token_logprobs"][len(prompt["ids"]):])
    check_offsets(lp, choice["text"])


def test_one_scored_token_follows_the_temperature(server):
    one, two = (server.complete(logprobs=20, max_tokens=1, temperature=t).json()["choices"][0]["logprobs"]["top_logprobs"][0]
                for t in (1, 2))
    one, two = sorted(one.values(), reverse=True), sorted(two.values(), reverse=True)
    for i in range(1, 4):
        assert abs((one[0] - one[i]) / 2 - (two[0] - two[i])) < 5e-4


def test_scoring_refuses_what_does_not_go_with_it(server):
    for fields, param in (({"n": 2}, "n"), ({"stream": True}, "stream"), ({"temperature": 0.0005}, "temperature")):
        check_error(server.complete(logprobs=1, max_tokens=1, **fields), 400, "invalid_parameter", param)
    check_error(server.complete(allowed_token_ids=[99999999], max_tokens=1), 400, "invalid_scoring_request")


def test_the_context_is_filled_to_its_last_token_and_not_beyond(server, golden):
    context = golden.vocab.context
    error = check_error(server.complete("word " * 20000, max_tokens=1), 400, "context_length_exceeded")
    assert str(context) in error["message"]
    check_error(server.complete("a", max_tokens=context), 400, "context_length_exceeded")
    room = context - server.complete("a", max_tokens=1).json()["usage"]["prompt_tokens"]
    body = server.complete("a", max_tokens=room, temperature=0).json()
    assert body["choices"][0]["finish_reason"] == "stop" or body["usage"]["total_tokens"] == context


def test_the_default_limit_is_512_cut_to_the_room(server, golden):
    usage = server.complete(temperature=0).json()
    assert usage["choices"][0]["finish_reason"] == "stop" or usage["usage"]["completion_tokens"] > 16
    assert usage["usage"]["completion_tokens"] <= 512 and usage["usage"]["total_tokens"] <= golden.vocab.context


def test_a_bias_forces_and_forbids(server, golden):
    token = next(i for i, b in sorted(golden.vocab.bytes.items()) if i not in golden.vocab.special and b.isalpha() and b.isascii())
    plain = text(server.complete(temperature=0, max_tokens=6))
    assert text(server.complete(temperature=0, max_tokens=6, logit_bias={str(token): 100})) == golden.vocab.decode([token] * 6)
    assert text(server.complete(temperature=0, max_tokens=6)) == plain


def test_top_p_and_top_k_of_one_are_greedy(server):
    plain = text(server.complete(temperature=0, max_tokens=24))
    for fields in ({"top_p": 1e-9}, {"top_p": 0}, {"top_k": 1}, {"temperature": 1e-30}):
        assert text(server.complete(**{"temperature": 1, "max_tokens": 24, **fields})) == plain


def test_a_prompt_seen_before_is_cached_and_answers_alike(server):
    prompt = "Never sent before. " * 12
    first, second = (server.complete(prompt, temperature=0, max_tokens=8).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert second["usage"]["prompt_tokens"] / 2 < cached < second["usage"]["prompt_tokens"]
    scored = server.complete(prompt, max_tokens=0, echo=True, logprobs=0).json()["usage"]
    assert scored["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_text_stream_is_the_plain_answer_in_pieces(server):
    for fields in ({"temperature": 0, "max_tokens": 40}, hot(seed=3, n=2), hot(seed=5, echo=True, logprobs=1)):
        plain = server.complete(**fields).json()
        answer, chunks = server.stream("/v1/completions", {"prompt": "The river ran low", **fields})
        for choice in plain["choices"]:
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
            assert "".join(c["text"] for c in mine) == choice["text"]
            assert [c["finish_reason"] for c in mine if "finish_reason" in c] == [choice["finish_reason"]]
            if choice["logprobs"]:
                joined = [x for c in mine for x in c.get("logprobs", {}).get("token_logprobs", [])]
                assert joined == choice["logprobs"]["token_logprobs"]
        assert chunks[-1]["millm_model"] == answer.header("X-miLLM-Model")


def test_an_empty_prompt_is_continued_and_not_scored(server):
    fields = {"prompt": "", "add_special_tokens": False, "max_tokens": 1}
    assert server.complete(**fields).json()["usage"]["prompt_tokens"] == 1  # the token that begins a text
    for extra in ({"logprobs": 1}, {"allowed_token_ids": [5]}):
        check_error(server.complete(**fields, **extra), 400, "invalid_scoring_request")
