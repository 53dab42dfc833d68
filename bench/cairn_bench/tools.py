"""Programs of ours, servers started for a bench, streamed clients, and the limits of the machine."""
import contextlib
import functools
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "cairn-bench")
TOKEN = "bench-token-0123456789"


def build(*targets):
    subprocess.run(["make", "-s", f"-j{os.cpu_count()}", *targets], cwd=ROOT, check=True)


@functools.cache
def program(name):
    """A bench program of ours, built when it is first asked for: no compiler runs beside a measurement."""
    build(f"build/bench/{name}")
    return os.path.join(ROOT, "build", "bench", name)


def figures(*command, env=None):
    """The `name value` lines a bench program prints, as a dict of floats."""
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    if out.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{out.stdout}{out.stderr}")
    found = {}
    for line in out.stdout.splitlines():
        words = line.split()
        if len(words) == 2:
            with contextlib.suppress(ValueError):
                found[words[0]] = float(words[1])
    return found


def limits():
    """Read bandwidth (GB/s) and f32 multiply-add peak (GFLOP/s) with all cores, measured now."""
    return figures(program("bench_limits"))


def quiet(limit=0.15, wait=20.0):
    """Waits until other work uses less than `limit` of one core, or `wait` seconds."""
    def busy():
        with open("/proc/stat") as f:
            v = [int(x) for x in f.readline().split()[1:]]
        return sum(v) - v[3] - v[4], sum(v)
    end = time.monotonic() + wait
    while time.monotonic() < end:
        a = busy()
        time.sleep(0.2)
        b = busy()
        if (b[0] - a[0]) / max(1, b[1] - a[1]) * os.cpu_count() < limit:
            return True
    print("  (the machine did not become quiet)", flush=True)
    return False


class Server:
    """`build/cairn serve` with fresh state; use as a context."""

    def __init__(self, **env):
        self.dir = tempfile.mkdtemp(prefix="bench-", dir=cache_dir("runs"))
        self.env = dict(os.environ, STATE_DIR=self.dir + "/state", WEIGHTS_CHECKPOINT_DIR=self.dir + "/checkpoints",
                        WEIGHTS_TOKENS=f"trainer:bench:{TOKEN}", **{k: str(v) for k, v in env.items()})
        self.headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def __enter__(self):
        self.log = open(self.dir + "/log", "wb")
        self.started = time.monotonic()
        self.process = subprocess.Popen([os.path.join(ROOT, "build", "cairn"), "serve", "--port", "0"], env=self.env,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise SystemExit(f"the server did not start; see {self.dir}/log")
        self.url = line.split()[-1]
        self.address = urllib.parse.urlsplit(self.url).netloc
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def call(self, method, path, body=None):
        link = http.client.HTTPConnection(self.address, timeout=600)
        link.request(method, path, None if body is None else json.dumps(body), self.headers)
        reply = link.getresponse()
        answer = json.loads(reply.read())
        link.close()
        if reply.status >= 400:
            raise SystemExit(f"{method} {path}: {answer}")
        return answer["data"] if path.startswith("/api/") and "data" in answer else answer

    def load(self, directory, name="bench"):
        row = self.call("POST", "/api/models", {"source": "local", "local_path": os.path.realpath(directory),
                                                "custom_name": name})
        self.call("POST", f"/api/models/{row['id']}/load", {})
        while True:
            state = self.call("GET", f"/api/models/{row['id']}")
            if state["status"] == "loaded":
                return row["id"]
            if state["status"] == "error":
                raise SystemExit(state["error_message"])
            time.sleep(0.01)

    def attach(self):
        info = self.call("POST", "/api/weights/attach", {"client": "bench"})
        self.headers["X-miLLM-Attachment"] = info["attachment_id"]
        return info

    def name(self):
        return self.call("GET", "/api/weights/status")["model"]["name"]

    def save(self, run, step):
        return self.call("POST", "/api/weights/save", {"manifest": {
            "run_id": run, "step": step, "domain": "bench", "signal_source": "corpus", "parent": None,
            "optimizer": {"name": "none", "state": "fresh"}}})


def cache_dir(*parts):
    path = os.path.join(CACHE, *parts)
    os.makedirs(path, exist_ok=True)
    return path


class Streams:
    """bench_stream started on a server: N streams of one body."""

    def __init__(self, address, path, body, n, stagger_ms=0):
        host, port = address.split(":")
        self.process = subprocess.Popen([program("bench_stream"), host, port, path, str(n), str(stagger_ms)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdin.write(json.dumps(body))
        self.process.stdin.close()

    def finish(self):
        first, gaps, events, names = [], [], [], []
        total = seconds = 0
        for line in self.process.stdout:
            words = line.split()
            if words[0] == "total":
                total, seconds = int(words[1]), float(words[2])
                continue
            if words[2] != "200":
                raise SystemExit(f"a stream was answered with status {words[2]}")
            first.append(float(words[3]))
            events.append(int(words[4]))
            names.append(words[5])
            gaps.append([float(w) for w in words[6:]])
        self.process.wait()
        return {"first_ms": first, "gaps": gaps, "events": events, "names": names, "total": total,
                "seconds": seconds}


def rate(result):
    """Tokens a second of all streams together, from the first token of the last stream on."""
    return result["total"] / result["seconds"] if result["seconds"] else 0.0


def decode_rate(result):
    """Tokens a second of one stream after its first token."""
    gaps = result["gaps"][0]
    return len(gaps) / (sum(gaps) / 1e3)
