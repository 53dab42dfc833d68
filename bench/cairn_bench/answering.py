"""What people's programs feel: a second turn, eight users of the `openai` package, small routes, minutes of mixed use."""
import os
import statistics
import subprocess
import sys
import time

from .peers import PY, LlamaServer, smollm
from .table import Table, Verdict, bench
from .tools import ROOT, Server, Streams, build, cache_dir, figures, program, quiet

TEXT = "The old lighthouse keeper wrote in his diary every evening. "


def ids_of(s, text, most):
    """Token ids of a text, by the server's own tokenizer."""
    got = s.call("POST", "/v1/completions", {"model": s.name(), "prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0,
                                             "return_tokens_as_token_ids": True})
    return [int(x.split(":")[1]) for x in got["choices"][0]["logprobs"]["tokens"]][:most]


def first_token_ms(s, ids):
    body = {"model": s.name(), "prompt": ids, "max_tokens": 2, "temperature": 0, "stream": True, "logit_bias": {"2": -100, "0": -100}}
    return Streams(s.address, "/v1/completions", body, 1).finish()["first_ms"][0]


@bench("second-turn", "SmolLM2, 2,000 tokens of history and 20 new ones: time to the first token beside the first turn")
def second_turn(pairs):
    build("all")
    t = Table("ms to the first token")
    with Server() as s:
        s.load(smollm())
        ids = ids_of(s, " ".join(f"Day {i}: {TEXT}" for i in range(140)), 2100)
        for k in range(1, pairs + 1):
            quiet()
            history = ids[k:2000] + ids[:k]
            t.add("first turn, 2,000 tokens", first_token_ms(s, history))
            t.add("second turn, 20 tokens more", first_token_ms(s, history + ids[2000 + k:2020 + k]))
    t.show()
    return [Verdict("second-turn", t.ratio("second turn, 20 tokens more", "first turn, 2,000 tokens"), 0.10, at_least=False)]


@bench("routes", "small JSON routes, keep-alive: requests/s when idle, and p99 while 8 clients stream")
def routes(pairs):
    build("all")
    client, idle, busy = program("bench_routes"), Table("requests/s"), Table("ms")
    with Server(MAX_CONCURRENT_REQUESTS=8) as s:
        s.load(smollm())
        host, port = s.address.split(":")
        for _ in range(pairs):
            quiet()
            for path in ("/v1/models", "/api/health"):
                idle.add(path, figures(client, host, port, path, "16", "3")["requests_per_s"])
            streams = Streams(s.address, "/v1/completions", {"model": s.name(), "prompt": TEXT, "max_tokens": 700, "temperature": 0,
                                                             "stream": True, "logit_bias": {"2": -100, "0": -100}}, 8)
            time.sleep(0.5)
            for path in ("/v1/models", "/api/health/detailed"):
                found = figures(client, host, port, path, "4", "2", "5")
                busy.add(f"{path}, p99 among 8 streams", found["p99_ms"])
                busy.add(f"{path}, median", found["p50_ms"])
            if streams.process.poll() is not None:
                raise SystemExit("the streams ended before the routes were measured")
            streams.finish()
    idle.show()
    busy.show()
    worst = max(busy.median(r) for r in busy.rows if "p99" in r)
    return [Verdict("routes-idle", min(idle.median(r) for r in idle.rows), 10000),
            Verdict("routes-busy-p99-ms", worst, 5, at_least=False)]


def python_with_openai():
    """A Python with the real `openai` package, in the cache."""
    venv = os.path.join(cache_dir(), "venv-openai")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(venv + "/ready"):
        subprocess.run([PY, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "openai>=1.50,<4"], check=True)
        open(venv + "/ready", "w").close()
    return python


def users(address, model, n):
    """Tokens a second of n users, each with turns of its own, all in one client process."""
    got = figures(python_with_openai(), os.path.join(ROOT, "bench/cairn_bench/chat_users.py"), address, model, str(n))
    return got["tokens_per_s"]


@bench("chat-users", "the `openai` package, 8 users with conversations: total tokens/s beside llama-server, same weights")
def chat_users(pairs):
    build("all")
    t = Table("tokens/s, all users")
    with Server(MAX_CONCURRENT_REQUESTS=8) as s, LlamaServer(8) as peer:
        s.load(smollm())
        for k in range(pairs + 1):
            quiet()
            ours, theirs = users(s.address, s.name(), 8), users(peer.address, "any", 8)
            if k > 0:  # the first pair warms both
                t.add("cairn, exact", ours)
                t.add("llama-server, BF16, 8 slots", theirs)
    t.show()
    return [Verdict("chat-users", t.ratio("cairn, exact", "llama-server, BF16, 8 slots"), 1.2)]


@bench("soak", "minutes of mixed use (make soak runs an hour): memory, descriptors and threads stay flat", pairs=300)
def soak(seconds):
    build("all")
    status = subprocess.run([sys.executable, os.path.join(ROOT, "tests/soak/soak.py"), "--seconds", str(seconds)]).returncode
    return [Verdict("soak-faults", float(status), 0, at_least=False)]
