"""Training: steps beside PyTorch, the share of the multiply-add peak, memory, and training beside streams.

Ours is driven over HTTP as a client would: one forward-backward pass and one optimizer step, JSON bodies. A step's
time runs from the first request to the last answer. The peer steps in a process of its own, in turn with ours."""
import os
import random
import statistics
import subprocess
import threading
import time
import urllib.request
import json

from .memory import resident_mb
from .peers import python_with_trainer, smollm
from .serving import body, show_limits
from .table import Table, Verdict, bench, percentile
from .tools import Server, Streams, build, limits, program, figures, quiet

KEY = "bench-key-0123456789"
ADAM = {"learning_rate": 1e-5, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01, "grad_clip_norm": 1.0}
PARAMETERS = 134.5e6
RANK = 32
ADAPTER = 30 * RANK * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))  # q, o; k, v; gate, up, down
PEAK = {"exact": "fma_gflops", "fast": "bf16_gflops"}  # what the mode's multiply-adds can reach
HERE = os.path.dirname(os.path.abspath(__file__))


class Trainer:
    """One run of a server's training API."""

    def __init__(self, server, mode, rank=RANK):
        self.server, self.seq, self.random = server, 0, random.Random(0)
        self.session = self.post("/sessions", {"tags": ["bench"], "user_metadata": {}, "sdk_version": "bench"})["id"]
        request = {"model_seq_id": 1, "base_model": "bench", "training_mode": mode}
        if mode == "lora":
            request["lora_config"] = {"rank": rank, "train_unembed": False}
        self.model = self.post(f"/sessions/{self.session}/models", request)["id"]

    def http(self, method, path, payload=None):
        request = urllib.request.Request(f"{self.server.url}/api/v1{path}", method=method,
                                         data=None if payload is None else json.dumps(payload).encode(),
                                         headers={"X-WEAVER-API-KEY": KEY, "Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)

    def post(self, path, payload):
        return self.http("POST", path, payload)

    def finish(self, op):
        while op["status"] not in ("done", "error"):
            op = self.http("GET", f"/operations/{op['id']}")
        if op["status"] == "error":
            raise SystemExit(f"{op['type']}: {op['error_message']}")
        return op["response"]

    def datum(self, length):
        ids = [self.random.randrange(3, 49000) for _ in range(length + 1)]
        return {"model_input": {"chunks": [{"type": "encoded_text", "tokens": ids[:-1]}]},
                "loss_fn_inputs": {"target_tokens": {"data": ids[1:], "dtype": "int64"}}}

    def next_seq(self):
        self.seq += 1
        return self.seq

    def operation(self, path, **payload):
        payload |= {"model_id": self.model, "seq_id": self.next_seq(), "tensor_transport": "default"}
        return self.finish(self.post(f"/models/{self.model}/{path}", {"payload": payload}))

    def export(self, name):
        """A sampling session on the weights of this moment."""
        path = self.finish(self.post(f"/models/{self.model}/export-sampler", {"seq_id": self.next_seq(), "path": name,
                                                                              "ttl_seconds": 600}))["model_path"]
        return self.post(f"/sessions/{self.session}/sampling-sessions", {
            "sampling_session_seq_id": 1, "base_model": "bench", "model_path": path})["id"]

    def sample(self, session, prompt, tokens, n):
        ids = [self.random.randrange(3, 49000) for _ in range(prompt)]
        return self.finish(self.post(f"/sampling-sessions/{session}/samples", {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": ids}]}, "num_samples": n,
            "sampling_params": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": tokens,
                                "seed": 1}}))["result"]

    def step(self, batch, length):
        """Seconds of one step, and its loss."""
        data = [self.datum(length) for _ in range(batch)]
        began = time.perf_counter()
        made = self.operation("forward-backward-passes",
                              forward_backward_input={"loss_fn": "cross_entropy", "data": data})
        done = self.operation("optimizer-steps", adam_params=ADAM)
        return time.perf_counter() - began, (made["metrics"]["loss"], done["metrics"]["grad_norm"])


class Peer:
    """torch_train.py, kept alive."""

    def __init__(self, mode, numerics, batch, length):
        self.process = subprocess.Popen([python_with_trainer(), os.path.join(HERE, "torch_train.py"), smollm(), mode,
                                         numerics, str(batch), str(length)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.name = self.process.stdout.readline().strip()
        if not self.name.startswith("ready"):
            raise SystemExit("the PyTorch peer did not start")

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline().split()[0])

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def training_server(numerics="exact", **env):
    return Server(WEAVER_API_KEYS=f"bench:{KEY}", CAIRN_NUMERICS=numerics, **env)


def work_of_token(mode, length):
    """GFLOP that a step's formulas need: nothing computed twice, causal attention, no gradient of frozen weights."""
    attention = 12 * 30 * 576 * length / 2
    return ((6 if mode == "full" else 4) * PARAMETERS + (6 * ADAPTER if mode == "lora" else 0) + attention) / 1e9


def compare(name, mode, numerics, peer_numerics, bar, pairs, batch=4, length=256):
    """Beside the speeds: which share of the mode's multiply-add peak they are, so how far a ratio can rise at all."""
    t, shares = Table("tokens/s"), Table("of the multiply-add peak")
    ours, theirs = f"cairn, {numerics}", f"PyTorch{' + peft' if mode == 'lora' else ''}, {peer_numerics}"
    peer = Peer(mode, peer_numerics, batch, length)
    try:
        with training_server(numerics) as s:
            s.load(smollm())
            trainer = Trainer(s, "full_ft" if mode == "full" else "lora")
            for i in range(pairs + 1):
                quiet()
                peak = limits()[PEAK[numerics]]
                a = batch * length / trainer.step(batch, length)[0]
                b = batch * length / peer.step()
                for row, speed in ((ours, a), (theirs, b)) if i > 0 else ():  # the first of each takes its memory
                    t.add(row, speed)
                    shares.add(row, speed * work_of_token(mode, length) / peak)
    finally:
        peer.stop()
    t.show()
    shares.show()
    return Verdict(name, t.ratio(ours, theirs), bar)


@bench("train-full", "full fine-tuning, SmolLM2-135M, 4 x 256 tokens: tokens/s beside PyTorch f32 and BF16 autocast")
def train_full(pairs):
    build("all")
    return [compare("train-full-exact", "full", "exact", "f32", 1.7, pairs),
            compare("train-full-fast", "full", "fast", "bf16", 1.2, pairs)]


@bench("train-lora", "LoRA of rank 32, SmolLM2-135M, 4 x 256 tokens: tokens/s beside PyTorch + peft")
def train_lora(pairs):
    build("all")
    return [compare("train-lora-exact", "lora", "exact", "f32", 2.0, pairs),
            compare("train-lora-fast", "lora", "fast", "bf16", 1.4, pairs)]


def roofline(numerics, pairs, batch=4, length=256):
    t = Table("GFLOP/s")
    ours, peak = f"cairn, {numerics}, a whole step", f"multiply-add peak, {numerics}"
    with training_server(numerics) as s:
        s.load(smollm())
        trainer = Trainer(s, "full_ft")
        for i in range(pairs + 1):
            quiet()
            found = limits()[PEAK[numerics]]
            speed = batch * length * work_of_token("full", length) / trainer.step(batch, length)[0]
            if i > 0:
                t.add(ours, speed)
                t.add(peak, found)
    t.show()
    return Verdict(f"train-roofline-{numerics}", t.ratio(ours, peak), 0.6)


@bench("train-roofline", "multiply-adds of a whole step of full fine-tuning beside the mode's peak, measured in the same run")
def train_roofline(pairs):
    build("all")
    return [roofline("exact", pairs), roofline("fast", pairs)]


@bench("train-memory", "peak memory of full fine-tuning, SmolLM2-135M, 4 x 256 tokens: at most 4.0 GB", pairs=1)
def train_memory(pairs):
    build("all")
    t = Table("GB")
    for _ in range(pairs):
        with training_server() as s:
            s.load(smollm())
            trainer = Trainer(s, "full_ft")
            peak, over = [0.0], threading.Event()

            def watch():
                while not over.is_set():
                    peak[0] = max(peak[0], resident_mb(s.process.pid) / 1e3)
                    time.sleep(0.05)
            watcher = threading.Thread(target=watch)
            watcher.start()
            for _ in range(3):
                trainer.step(4, 256)
            over.set()
            watcher.join()
            t.add("all processes, peak", peak[0])
    t.show()
    return [Verdict("train-memory-gb", t.median("all processes, peak"), 4.0, at_least=False)]


@bench("train-serve", "training while 8 clients stream: gaps between tokens, and training's share of its idle speed")
def train_serve(pairs):
    build("all")
    t = Table("ms, tokens/s")
    with training_server() as s:
        s.load(smollm())
        trainer = Trainer(s, "lora")
        trainer.step(2, 256)
        for _ in range(pairs):
            quiet()
            alone = Streams(s.address, "/v1/completions", body(s.name(), 600), 8).finish()
            idle = 512 / trainer.step(2, 256)[0]
            streams = Streams(s.address, "/v1/completions", body(s.name(), 600), 8)
            time.sleep(0.5)
            beside = 512 / trainer.step(2, 256)[0]  # shorter than the streams
            if streams.process.poll() is not None:
                raise SystemExit("the streams ended before the training step did")
            result = streams.finish()
            t.add("median gap alone", percentile([g for x in alone["gaps"] for g in x[4:]], 50))
            t.add("p99 gap alone", percentile([g for x in alone["gaps"] for g in x[4:]], 99))
            t.add("p99 gap beside training", percentile([g for x in result["gaps"] for g in x[4:]], 99))
            t.add("training alone, tokens/s", idle)
            t.add("training beside, tokens/s", beside)
    t.show()
    more = statistics.median(b - a for a, b in zip(t.rows["p99 gap alone"], t.rows["p99 gap beside training"]))
    share = statistics.median(b / a for a, b in zip(t.rows["training alone, tokens/s"],
                                                    t.rows["training beside, tokens/s"]))
    step = t.median("median gap alone")
    print(f"this run: 6 ms of training beside each step of {step:.1f} ms are {6 / (step + 6) / 0.5:.2f} of its share")
    return [Verdict("train-serve-gap-ms", more, 6.0, at_least=False), Verdict("train-serve-share", share / 0.5, 0.85)]


@bench("train-budget", "full fine-tuning of 1 x 2,048 tokens in 3 GB (300 MB of activations): speed and bits beside no budget")
def train_budget(pairs):
    build("all")
    t, same = Table("tokens/s"), []
    for _ in range(pairs):
        losses = []
        for name, budget in (("activations in 300 MB", 300), ("no budget", 0)):
            with training_server(CAIRN_TRAIN_MB=budget) as s:
                s.load(smollm())
                trainer = Trainer(s, "full_ft")
                quiet()
                losses.append(trainer.step(1, 2048)[1])  # takes the memory
                seconds, values = trainer.step(1, 2048)
                losses.append(values)
                t.add(name, 2048 / seconds)
        same.append(losses[:2] == losses[2:])
    t.show()
    print(f"losses and gradient norms with the same bits: {sum(same)} of {len(same)}")
    return [Verdict("train-budget", t.ratio("activations in 300 MB", "no budget"), 0.7),
            Verdict("train-budget-same-bits", sum(same) / len(same), 1.0)]


@bench("save-state", "weight_and_optimizer of a full run (1.9 GB, hashed): beside a direct write; another run trains on")
def save_state(pairs):
    build("all")
    store = program("bench_store")
    t, other = Table("GB/s"), []
    with training_server() as s:
        s.load(smollm())
        trainer, beside = Trainer(s, "full_ft"), Trainer(s, "lora")
        trainer.step(1, 64)
        beside.step(1, 64)
        size = PARAMETERS * 14 / 1e9  # BF16 weights, f32 masters and two moments
        for i in range(pairs):
            quiet()
            alone = figures(store, "--only", "limits")
            began = time.perf_counter()
            op = trainer.post(f"/models/{trainer.model}/checkpoints", {"type": "weight_and_optimizer", "name": f"s{i}",
                                                                       "ttl_seconds": 60})
            trainer.finish(op)
            t.add("cairn, written, hashed, synced", size / (time.perf_counter() - began))
            t.add("direct write alone", alone["write_gbs"])
            op, steps = trainer.post(f"/models/{trainer.model}/checkpoints", {"type": "weight_and_optimizer",
                                                                              "name": f"t{i}", "ttl_seconds": 60}), 0
            saving = threading.Thread(target=trainer.finish, args=(op,))
            saving.start()
            while saving.is_alive():
                beside.step(1, 64)
                steps += 1
            other.append(steps)
    t.show()
    print(f"steps of another run during a save: median {statistics.median(other)}, least {min(other)}")
    return [Verdict("save-state", t.ratio("cairn, written, hashed, synced", "direct write alone"), 0.8),
            Verdict("save-state-others-train", min(other), 1)]


@bench("export-to-token", "LoRA: export of the weights, sampling session and first token: < 100 ms", pairs=20)
def export_to_token(pairs):
    build("all")
    t = Table("ms")
    with training_server() as s:
        s.load(smollm())
        trainer = Trainer(s, "lora")
        for i in range(pairs + 1):
            trainer.step(1, 64)
            began = time.perf_counter()
            trainer.sample(trainer.export(f"e{i}"), 20, 1, 1)
            if i > 0:
                t.add("export to first token of 20", 1e3 * (time.perf_counter() - began))
    t.show()
    return [Verdict("export-to-token-ms", t.median("export to first token of 20"), 100, at_least=False)]


@bench("samples", "32 samples of 64 tokens from one prompt of 256: tokens/s beside one sample's")
def samples(pairs):
    build("all")
    t = Table("tokens/s")
    with training_server() as s:
        s.load(smollm())
        trainer = Trainer(s, "lora")
        session = trainer.export("x")
        for i in range(pairs + 1):
            quiet()
            for name, n in (("one sample", 1), ("32 samples", 32)):
                began = time.perf_counter()
                made = trainer.sample(session, 256, 64, n)
                if i > 0:
                    t.add(name, made["usage"]["completion_tokens"] / (time.perf_counter() - began))
    t.show()
    return [Verdict("samples", t.ratio("32 samples", "one sample"), 6.0)]
