"""Bad values of environment variables: each stops the start, with exit status 1 and the name of its variable."""
import os
import socket
import subprocess

import pytest
from conftest import ROOT

SECONDS = ["WEIGHTS_QUIESCE_MAX_HOLD_S", "WEIGHTS_COMMIT_WATCHDOG_S", "WEIGHTS_HEARTBEAT_TIMEOUT_S", "WEIGHTS_DRAIN_TIMEOUT_S",
           "WEIGHTS_HOLD_REQUEST_TIMEOUT_S", "GRACEFUL_UNLOAD_TIMEOUT"]
BAD = [(name, value) for name in SECONDS for value in ("0", "-1", "nan", "inf", "1e12", "5s")] + [
    ("WEIGHTS_TOKENS", "trainer:forge"), ("WEIGHTS_TOKENS", "trainer:forge:short"),
    ("WEIGHTS_TOKENS", "admin:forge:0123456789abcdef"), ("WEIGHTS_TOKENS", "trainer:f:0123456789abcdef,operator:g:0123456789abcdef"),
    ("WEIGHTS_TOKENS_FILE", "/no/such/file"), ("WEIGHTS_CHECKPOINT_DIR", "relative"), ("WEIGHTS_CHECKPOINT_DIR", "/dev/null"),
    ("WEIGHTS_CHECKPOINT_READ_ROOTS", "relative"), ("WEIGHTS_CHECKPOINT_READ_ROOTS", "/tmp,/tmp"),
    ("WEIGHTS_CHECKPOINT_READ_ROOTS", "/no/such\udcff/root"),
    ("WEIGHTS_SAVE_FREE_SPACE_FACTOR", "0.9"), ("WEIGHTS_SAVE_FREE_SPACE_FACTOR", "nan"),
    ("WEIGHTS_SAVE_OVERHEAD_MB", "-1"), ("WEIGHTS_SAVE_OVERHEAD_MB", "1.5"), ("WEIGHTS_LINEAGE_MAX_DEPTH", "0"),
    ("WEIGHTS_LINEAGE_MAX_DEPTH", "100001"), ("WEIGHTS_SHM_TRANSPORT", "pipe"), ("WEIGHTS_SHM_MODE", "0888"),
    ("WEIGHTS_SHM_GROUP", "no-such-group"), ("WEIGHTS_LOAD_PREFETCH", "maybe"), ("WEIGHTS_BARRIER", "some"),
    ("ADAPTER_DIR", "relative"), ("MODEL_CACHE_DIR", "relative"), ("PORT", "65536"), ("HOST", "no.such.host.invalid"),
    ("LOG_LEVEL", "LOUD"), ("LOG_FORMAT", "xml"), ("MAX_CONCURRENT_REQUESTS", "0"), ("MAX_PENDING_REQUESTS", "many"),
    ("ENABLE_CONTINUOUS_BATCHING", "2"), ("EMBEDDINGS_MAX_INPUTS", "2049"), ("LEASE_DEFAULT_TTL_SECONDS", "7201"),
    ("QUEUE_DURATION_WINDOW", "2"), ("CAIRN_NUMERICS", "sloppy"), ("CAIRN_KERNELS", "abacus"), ("HOST", "0.0.0.0"),
    ("WEAVER_MAX_OPERATIONS", "0"),
]


@pytest.mark.parametrize("option,value", [("--port", "-1"), ("--port", "65536"), ("--threads", "-1"), ("--threads", "4097")])
def test_a_bad_option_stops_the_start_and_is_named(tmp_path, option, value):
    program = os.environ.get("CAIRN", str(ROOT / "build/cairn"))
    done = subprocess.run([program, "serve", option, value], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env={"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), "PORT": "0"})
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.splitlines()[-1].startswith(f"cairn serve: {option} must be from 0 to ")


@pytest.mark.parametrize("name,value", BAD)
def test_a_bad_value_stops_the_start_and_names_its_variable(tmp_path, name, value):
    program = os.environ.get("CAIRN", str(ROOT / "build/cairn"))
    env = {"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), "WEIGHTS_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
           "WEIGHTS_TOKENS": "trainer:tests:0123456789abcdef" if name == "HOST" and value != "0.0.0.0" else "", name: value}
    done = subprocess.run([program, "serve", "--port", "0"] if name != "PORT" else [program, "serve"], env=env, cwd=ROOT,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.splitlines()[-1].startswith("cairn serve: ") and name in done.stderr.splitlines()[-1]
    assert "0123456789abcdef" not in done.stderr


@pytest.mark.parametrize("name,value,range_", [
    ("WEIGHTS_DRAIN_TIMEOUT_S", "0", "must be a number above 0, at most 1000000000"), ("PORT", "-1", "must be a whole number from 0 to 65535"),
    ("WEIGHTS_SAVE_FREE_SPACE_FACTOR", "0.5", "must be a number from 1 to 1000000000000"),
    ("BATCH_MAX_FILE_BYTES", "0", "must be a whole number from 1 to 1099511627776"), ("CAIRN_THREADS", " ", "must be a whole number from 0 to 4096"),
])
def test_a_number_that_is_refused_is_told_its_range(tmp_path, name, value, range_):
    program = os.environ.get("CAIRN", str(ROOT / "build/cairn"))
    done = subprocess.run([program, "serve"], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env={"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), "PORT": "0", name: value})
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"cairn serve: {name}={value}: {range_}"


def test_a_variable_that_is_not_known_is_told_and_changes_nothing(make_server):
    own = make_server({"CAIRN_THREAD": "1", "WEIGHTS_DRAIN_TIMEOUT": "3", "CAIRN_TOKEN": "x", "CAIRN_THREADS": "2"}, model=None)
    log = own.log_text()
    assert own.stop() == 0
    for name in ("CAIRN_THREAD", "WEIGHTS_DRAIN_TIMEOUT"):
        assert f'cause="{name} is no variable of this server and changes nothing"' in log
    assert "CAIRN_TOKEN" not in log and "CAIRN_THREADS" not in log


def refusal_of_start(tmp_path, **env):
    program = os.environ.get("CAIRN", str(ROOT / "build/cairn"))
    done = subprocess.run([program, "serve"], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env={"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), "PORT": "0", **env})
    assert done.returncode == 1 and not done.stdout
    return done.stderr.splitlines()[-1]


def test_a_port_that_is_taken_says_what_to_do(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal_of_start(tmp_path, PORT=str(port))
    assert said == (f"cairn serve: 127.0.0.1 port {port} is in use by another program: stop it, or choose another port "
                    "(PORT, --port; 0 takes any free one)")


def test_a_catalogue_that_is_no_database_says_what_to_do(tmp_path):
    (tmp_path / "cairn.db").write_bytes(b"this is no database at all, but longer than its header" * 40)
    said = refusal_of_start(tmp_path)
    assert said.startswith(f"cairn serve: {tmp_path}/cairn.db is damaged: ") and "cairn reindex" in said
    assert (tmp_path / "cairn.db").read_bytes().startswith(b"this is no database")
