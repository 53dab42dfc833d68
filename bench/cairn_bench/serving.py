"""Decode, batches, prefill, a long prompt among streams, and saves while clients stream."""
import math
import mmap
import os
import statistics
import threading
import time

from .peers import LlamaServer, llama_bench, made_model, smollm
from .table import Table, Verdict, bench, percentile
from .tools import Server, Streams, build, decode_rate, figures, limits, program, quiet

TEXT = "The old lighthouse keeper wrote in his diary every evening. "
NO_END = {"2": -100, "0": -100}  # SmolLM2's end tokens never come: every stream has its full length


def body(model, tokens, prompt=TEXT, **more):
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
            "logit_bias": NO_END, **more}


def show_limits(found):
    print(f"this run: read {found['read_gbs']:.1f} GB/s, f32 multiply-add {found['fma_gflops']:.0f} GFLOP/s "
          f"on all {os.cpu_count()} cores", flush=True)


def weights_gb():
    return os.path.getsize(smollm() + "/model.safetensors") / 1e9


FLOP_PER_TOKEN = 2 * 134.5e6  # every weight once, the tied embedding as head


@bench("decode", "one request, SmolLM2-135M BF16, exact: tokens/s beside llama.cpp, and the read bandwidth used")
def decode(pairs):
    build("all")
    t, bandwidth = Table("tokens/s"), []
    with Server() as s:
        s.load(smollm())
        for _ in range(pairs):
            quiet()
            found = limits()
            bandwidth.append(found["read_gbs"])
            t.add("cairn, exact, over HTTP", decode_rate(Streams(s.address, "/v1/completions", body(s.name(), 129), 1).finish()))
            t.add("llama.cpp, BF16, llama-bench tg128", llama_bench(0, 128))
    show_limits({"read_gbs": statistics.median(bandwidth), "fma_gflops": found["fma_gflops"]})
    t.show()
    ours = "cairn, exact, over HTTP"
    used = statistics.median(v * weights_gb() / b for v, b in zip(t.rows[ours], bandwidth))
    return [Verdict("decode", t.ratio(ours, "llama.cpp, BF16, llama-bench tg128"), 1.0), Verdict("decode-bandwidth", used, 0.8)]


def one_batch(n, pairs, bar):
    t, physical = Table("tokens/s, all streams"), []
    ours, peer = f"cairn, exact, {n} streams", f"llama-server, BF16, {n} slots"
    with Server() as s, LlamaServer(n) as peer_server:
        s.load(smollm())
        for i in range(pairs + 1):
            quiet()
            found = limits()
            a = batch_rate(s.address, body(s.name(), 128), n)
            b = batch_rate(peer_server.address, body("any", 128), n)
            if i == 0:
                continue  # warm both
            t.add(ours, a)
            t.add(peer, b)
            step_s = max(weights_gb() / found["read_gbs"], n * FLOP_PER_TOKEN / 1e9 / found["fma_gflops"])
            physical.append(a / (n / step_s))
    show_limits(found)
    t.show()
    return [Verdict(f"batch-decode-{n}", t.ratio(ours, peer), bar),
            Verdict(f"batch-decode-{n}-limit", statistics.median(physical), 0.75)]


def batch_rate(address, request, n):
    """Tokens a second while all n streams decode: the median gap gives the step."""
    result = Streams(address, "/v1/completions", request, n).finish()
    gaps = [g for stream in result["gaps"] for g in stream[4:]]
    return n * len(gaps) / sum(gaps) * 1e3


@bench("batch-decode", "4 and 8 requests together, exact: total tokens/s beside llama-server, and the machine's limit")
def batch_decode(pairs):
    build("all")
    return one_batch(4, pairs, 1.3) + one_batch(8, pairs, 1.5)


@bench("prefill", "512 tokens: exact and fast beside llama.cpp BF16, and exact beside the f32 multiply-add peak")
def prefill(pairs):
    model_bench = program("bench_model")
    t, peak = Table("tokens/s"), []
    for _ in range(pairs):
        quiet()
        peak.append(limits()["fma_gflops"])
        t.add("cairn exact", figures(model_bench, "--dir", smollm(), "--prefill")["prefill_512_tokens_per_s"])
        t.add("cairn fast", figures(model_bench, "--dir", smollm(), "--prefill", "--fast")["prefill_512_tokens_per_s"])
        t.add("llama.cpp BF16 pp512", llama_bench(512, 0))
    t.show()
    # 106.2 M weights outside the embedding, and attention of 512 causal positions: 30 layers, 576 wide.
    flop = 2 * 106.2e6 + 2 * 2 * 30 * 576 * 256.5
    used = statistics.median(v * flop / 1e9 / p for v, p in zip(t.rows["cairn exact"], peak))
    print(f"this run: f32 multiply-add peak {statistics.median(peak):.0f} GFLOP/s")
    return [Verdict("prefill-exact", t.ratio("cairn exact", "llama.cpp BF16 pp512"), 0.8),
            Verdict("prefill-fast", t.ratio("cairn fast", "llama.cpp BF16 pp512"), 1.4),
            Verdict("prefill-exact-peak", used, 0.7)]


def prompt_ids(s, n):
    """The first n tokens of a long text."""
    text = " ".join(f"Day {i}: {TEXT}" for i in range(130))
    scored = s.call("POST", "/v1/completions", {"model": s.name(), "prompt": text, "max_tokens": 0, "echo": True,
                                                "logprobs": 0, "return_tokens_as_token_ids": True})
    return [int(x.split(":")[1]) for x in scored["choices"][0]["logprobs"]["tokens"]][:n]


MIXED_TOKENS, MIXED_STEP_MS = 2000, 30


def first_token_limit(decode_ms, alone_ms):
    """Steps of the longest gap allowed, each with the streams' rows and as many of the prompt as fit, at its pace alone."""
    rows = max(0.0, MIXED_STEP_MS - decode_ms) / (alone_ms / MIXED_TOKENS)
    return MIXED_TOKENS / rows * MIXED_STEP_MS if rows else math.inf


def mix_once(s, t, numerics, ids, k):
    """One long prompt alone, one among eight streams; no two begin alike."""
    prompt = body(s.name(), 4, ids[k:] + ids[:k])
    alone = Streams(s.address, "/v1/completions", prompt, 1).finish()["first_ms"][0]
    streams = Streams(s.address, "/v1/completions", body(s.name(), 400), 8)
    time.sleep(1.0)
    prompt["prompt"] = ids[k + 500:] + ids[:k + 500]
    among = Streams(s.address, "/v1/completions", prompt, 1).finish()["first_ms"][0]
    streamed = streams.finish()["gaps"]
    gaps = [g for stream in streamed for g in stream]
    before = statistics.median(g for stream in streamed for g in stream[4:40])
    t.add(f"{numerics}: gap of the streams before it comes", before)
    t.add(f"{numerics}: first token at best, by steps of {MIXED_STEP_MS} ms", first_token_limit(before, alone))
    t.add(f"{numerics}: first token, alone", alone)
    t.add(f"{numerics}: first token, among 8 streams", among)
    t.add(f"{numerics}: p99 gap of the streams", percentile(gaps, 99))


@bench("mixed", "a 2,000-token prompt arrives among 8 streams: their token gaps, and its first token beside alone")
def mixed(pairs):
    build("all")
    t = Table("ms")
    for numerics in ("exact", "fast"):  # the verdict is of exact
        with Server(MAX_CONCURRENT_REQUESTS=9, CAIRN_NUMERICS=numerics) as s:
            s.load(smollm())
            ids = prompt_ids(s, MIXED_TOKENS)
            for k in range(1, pairs + 1):
                quiet()
                mix_once(s, t, numerics, ids, k)
    t.show()
    best = t.ratio(f"exact: first token at best, by steps of {MIXED_STEP_MS} ms", "exact: first token, alone")
    print(f"this run: with no gap over {MIXED_STEP_MS} ms the first token comes at best after {best:.2f} x of alone")
    return [Verdict("mixed-gap-p99-ms", t.median("exact: p99 gap of the streams"), MIXED_STEP_MS, at_least=False),
            Verdict("mixed-first-token", t.ratio("exact: first token, among 8 streams", "exact: first token, alone"), 1.6, at_least=False)]


def gaps_of(s, tokens):
    return [g for stream in Streams(s.address, "/v1/completions", body(s.name(), tokens), 8).finish()["gaps"] for g in stream[2:]]


def show_share_limit(speed):
    """What a save at this part of SHA-256's speed must cost steps that keep every core busy."""
    n = os.cpu_count()
    print(f"this run: {speed} of a core for the save makes steps that use all {n} cores fully {n / (n - speed):.2f} x as long")


def saves_among_streams(s, pairs, found):
    """Saves without a pause between them while 8 clients stream; adds to the lists of `found`."""
    size = os.path.getsize(smollm() + "/model.safetensors")
    step = 0
    for _ in range(pairs):
        quiet()
        found["without"] += gaps_of(s, 500)
        streams = Streams(s.address, "/v1/completions", body(s.name(), 500), 8)
        time.sleep(0.3)
        while streams.process.poll() is None and step < 4000:
            step += 1
            saved = s.save("bench", step)
            found["pause"].append(saved["snapshot_ms"])
            found["speed"].append(size / 1e6 / saved["write_ms"])
        found["with"] += [g for stream in streams.finish()["gaps"] for g in stream[2:]]
        clear(s)  # not before: removing 2 GB holds a core for 0.2 s
    return step


def small_saves(pairs, sha):
    t = Table("0.27 GB, 8 streams")
    for numerics in ("exact", "fast"):  # the verdict is of exact
        found = {"pause": [], "with": [], "without": [], "speed": []}
        with Server(CAIRN_NUMERICS=numerics) as s:
            s.load(smollm())
            s.attach()
            step = saves_among_streams(s, pairs if numerics == "exact" else 1, found)
            while numerics == "exact" and len(found["pause"]) < 200:
                step += 1
                found["pause"].append(s.save("bench", step)["snapshot_ms"])
                if step % 8 == 0:
                    clear(s)
        for name, key in (("snapshot ms", "pause"), ("token gap ms, with saves", "with"), ("token gap ms, without", "without"),
                          ("write GB/s under load", "speed")):
            t.rows[f"{numerics}: {name}"] = found[key]
        if numerics == "exact":
            exact = found
    t.show()
    return [Verdict("save-pause-small-ms", percentile(exact["pause"], 99), 1.0, at_least=False),
            Verdict("save-pause-gaps", percentile(exact["with"], 99) / percentile(exact["without"], 99), 1.3, at_least=False),
            Verdict("save-pause-longest-gap-ms", max(exact["with"]), 30, at_least=False),
            Verdict("save-pause-speed", statistics.median(exact["speed"]) / sha, 0.7)]


def clear(s):
    """Checkpoints of a bench are of no use: keep the disk free."""
    import glob
    import shutil
    for old in glob.glob(s.dir + "/checkpoints/bench/step-*"):
        shutil.rmtree(old)


def big_saves(count):
    pause = []
    with Server() as s:
        s.load(made_model())
        s.attach()
        for step in range(1, count + 1):
            pause.append(s.save("bench", step)["snapshot_ms"])
            clear(s)
    t = Table("2.5 GB, idle")
    t.rows["snapshot ms"] = pause
    t.show()
    return [Verdict("save-pause-big-ms", max(pause), 1.0, at_least=False)]


@bench("save-pause", "saves while 8 clients stream: the pause, token gaps, speed; a commit in the middle of a save")
def save_pause(pairs):
    build("all")
    sha = figures(program("bench_store"), "--only", "sha256")["sha256_gbs"]
    print(f"this run: SHA-256 of one message {sha:.2f} GB/s")
    show_share_limit(0.7)
    return small_saves(pairs, sha) + big_saves(20) + commit_in_save(pairs)


def copy_gbs():
    return figures(program("bench_store"), "--only", "limits", "--mb", "1024")["copy_gbs"]


def commit_in_save(pairs):
    """A commit that comes when half is written, beside a copy of the unwritten rest with all cores."""
    t, ratios, pauses = Table("ms"), [], []
    size = os.path.getsize(made_model() + "/model.safetensors")
    with Server() as s:
        s.load(made_model())
        s.attach()
        alone = statistics.median(s.save("bench", k)["write_ms"] for k in (1, 2, 3))
        clear(s)
        for step in range(4, 4 + pairs):
            copy = copy_gbs()
            s.call("POST", "/api/weights/quiesce", {})
            saver = In(lambda n=step: s.save("bench", n))
            time.sleep(alone / 2e3)
            began = time.monotonic()
            s.call("POST", "/api/weights/commit-begin", {})
            inside = (time.monotonic() - began) * 1e3
            left = max(0.0, 1 - alone / 2 / alone)
            s.call("POST", "/api/weights/commit-end", {})
            saved = saver.result()
            s.call("POST", "/api/weights/resume", {})
            clear(s)
            pauses.append(saved["snapshot_ms"])
            rest = size * left / 1e6 / copy
            t.add("inside commit-begin", inside)
            t.add("copy of the unwritten half", rest)
            ratios.append(inside / rest)
    t.show()
    return [Verdict("save-pause-commit-ms", max(pauses), 1.0, at_least=False),
            Verdict("save-pause-commit", statistics.median(ratios), 1.5, at_least=False)]


class In:
    """A call on a thread of its own."""

    def __init__(self, call):
        self.value = None
        self.thread = threading.Thread(target=lambda: setattr(self, "value", call()))
        self.thread.start()

    def result(self):
        self.thread.join()
        return self.value


@bench("save-under-load", "2.5 GB saved while 8 clients stream: the clients' token gaps, the speed of the save")
def save_under_load(pairs):
    build("all")
    sha = figures(program("bench_store"), "--only", "sha256")["sha256_gbs"]
    print(f"this run: SHA-256 of one message {sha:.2f} GB/s")
    show_share_limit(0.7)
    size = os.path.getsize(made_model() + "/model.safetensors")
    t, tails, longest, speed = Table("ms"), [], [], []
    with Server() as s:
        s.load(made_model())
        s.attach()
        for step in range(1, pairs + 1):
            quiet()
            plain = gaps_of(s, 64)
            streams = Streams(s.address, "/v1/completions", body(s.name(), 64), 8)
            time.sleep(0.5)
            saved = s.save("bench", step)
            gaps = [g for stream in streams.finish()["gaps"] for g in stream[2:]]
            clear(s)
            t.add("p99 gap without", percentile(plain, 99))
            t.add("p99 gap with a save", percentile(gaps, 99))
            tails.append(percentile(gaps, 99) / percentile(plain, 99))
            longest.append(max(gaps) - statistics.median(plain))
            speed.append(size / 1e6 / saved["write_ms"] / sha)
    t.show()
    return [Verdict("save-under-load-gaps", statistics.median(tails), 1.3, at_least=False),
            Verdict("save-under-load-longest-over-step-ms", statistics.median(longest), 30, at_least=False),
            Verdict("save-under-load-speed", statistics.median(speed), 0.7)]


def change_a_little(info):
    """The last mantissa bit of one tensor, through the mapped memory: other weights, other file."""
    tensor = max(info["tensors"], key=lambda t: t["nbytes"])
    with open(info["arena"]["path"], "r+b", buffering=0) as f, mmap.mmap(f.fileno(), info["arena"]["bytes"]) as arena:
        at, end = tensor["offset"], tensor["offset"] + tensor["nbytes"]
        arena[at:end:2] = bytes(x ^ 1 for x in arena[at:end:2])


class Crowd:
    """Clients that stream 64 tokens again and again, each by the name that is served when it asks."""

    def __init__(self, server, clients=8, tokens=64):
        self.server, self.tokens, self.end = server, tokens, False
        self.gaps, self.asked, self.lost, self.mixed, self.late = [], 0, 0, 0, 0
        self.first_ms, self.answer_ms = [], []
        self.threads = [threading.Thread(target=self._ask) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _ask(self):
        while not self.end:
            wanted = self.server.name()
            streams = Streams(self.server.address, "/v1/completions", body(wanted, self.tokens), 1)
            self.asked += 1
            began = time.monotonic()
            try:
                result = streams.finish()
            except SystemExit as answer:
                gone = "status 404" in str(answer)  # the name was swapped away before the request came, as documented
                self.late, self.lost = self.late + gone, self.lost + (not gone)
                continue
            self.answer_ms.append(1000 * (time.monotonic() - began))
            self.first_ms.append(result["first_ms"][0])
            self.gaps.extend(result["gaps"][0][2:])
            self.lost += result["events"][0] != self.tokens
            self.mixed += not result["names"][0].startswith(f'"{wanted}"')

    def stop(self):
        self.end = True
        for thread in self.threads:
            thread.join()


@bench("swap", "0.27 GB, not attached: 300 swaps between two checkpoints, one a second, while 8 clients stream", pairs=300)
def swap(swaps):
    build("all")
    program("bench_stream")  # before its clients ask for it all at once
    with Server() as s:
        s.load(smollm())
        info = s.attach()
        names = [s.save("bench", 1)["name"]]
        s.call("POST", "/api/weights/quiesce", {})
        s.call("POST", "/api/weights/commit-begin", {})
        change_a_little(info)
        s.call("POST", "/api/weights/commit-end", {})
        names.append(s.save("bench", 2)["name"])
        s.call("POST", "/api/weights/resume", {})
        s.call("POST", "/api/weights/detach", {})
        del s.headers["X-miLLM-Attachment"]
        half = Crowd(s, 4)
        time.sleep(max(5.0, swaps / 20))
        half.stop()
        plain = Crowd(s)  # the same clients without swaps
        time.sleep(max(5.0, swaps / 10))
        plain.stop()
        crowd, alive = Crowd(s), 0
        for k in range(swaps):
            began = time.monotonic()
            s.call("POST", "/api/weights/load", {"name": names[k % 2]})
            alive = max(alive, s.call("GET", "/api/health/detailed")["inference"]["images_alive"])
            time.sleep(max(0.0, 1 - (time.monotonic() - began)))
        crowd.stop()
    t = Table("token gap, ms")
    t.rows = {"without swaps": plain.gaps, "with a swap a second": crowd.gaps, "without swaps, 4 clients": half.gaps}
    t.show()
    whole = Table("ms")
    whole.rows = {"first token, without swaps": plain.first_ms, "first token, with a swap a second": crowd.first_ms,
                  "answer, without swaps": plain.answer_ms, "answer, with a swap a second": crowd.answer_ms}
    whole.show()
    two = 2 * statistics.median(half.gaps)
    print(f"this run: a step whose eight rows belong half to each of two weights takes {two:.1f} ms, "
          f"{two / statistics.median(plain.gaps):.2f} x of without; an answer takes {64 * statistics.median(plain.gaps) / 1000:.1f} s")
    print(f"of {crowd.asked} requests: lost {crowd.lost}, with another name's weights {crowd.mixed}, came with a name that "
          f"had just gone {crowd.late}; images alive at most {alive}")
    return [Verdict("swap-lost-or-mixed", crowd.lost + crowd.mixed, 0, at_least=False),
            Verdict("swap-images-alive", alive, 3, at_least=False),
            Verdict("swap-median", statistics.median(crowd.gaps) / statistics.median(plain.gaps), 1.3, at_least=False),
            Verdict("swap-p99", percentile(crowd.gaps, 99) / percentile(plain.gaps, 99), 2.5, at_least=False)]
