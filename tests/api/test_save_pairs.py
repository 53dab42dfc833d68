"""Every refusal of POST /api/weights/save, alone and in pairs (docs/api/weights.md, "POST save")."""
import contextlib
import functools
import threading

import pytest
from conftest import FAULTS, needs_faults, wait_until
from pairs import COUNTER, Case, Condition, Pool, check, every, named, pairs
from trainer import FIELDS, granted, refused, status

WATCHDOG = {"WEIGHTS_COMMIT_WATCHDOG_S": "0.2"}


@pytest.fixture(scope="module")
def pool(make_server, tmp_path_factory):
    directory = tmp_path_factory.mktemp("pairs")
    (directory / "schema.json").write_text('{"type": "object", "properties": {"step": {"type": "integer"}}}')
    UNUSABLE["WEIGHTS_SCHEMA_FILE"] = str(directory / "schema.json")
    made = Pool(make_server, directory)
    yield made
    made.close()


UNUSABLE = {"WEIGHTS_SCHEMA_FILE": ""}  # where it lies is known when the tests run


def make_case(server, stack, attach=True):
    case = Case(server, stack)
    case.run = f"pair-{next(COUNTER)}"
    case.manifest = {**FIELDS, "run_id": case.run, "step": 7}
    case.body = {"manifest": case.manifest}
    if attach and server.env["WEIGHTS_TOKENS"]:
        case.attach()
    return case


def set_run(case, run):
    case.run = case.manifest["run_id"] = run


def leave(case):
    """Nobody is attached."""
    case.stack.close()
    case.holder = None


def tear(case):
    """A commit outlives its watchdog; its late end mends the weights."""
    case.open_commit()
    wait_until(lambda: status(case.server)["weights_state"] == "torn")


CONDITIONS = [
    Condition(1, "token", 401, "UNAUTHORIZED", lambda c: setattr(c, "token", "y" * 20)),
    Condition(1, "no tokens", 403, "WEIGHTS_DISABLED", env={"WEIGHTS_TOKENS": ""},
              never_with=("other id", "commit open", "torn")),
    Condition(1.5, "body", 422, "VALIDATION_ERROR", lambda c: c.body.update(extra=1)),
    Condition(2, "schema", 400, "INVALID_MANIFEST", env=UNUSABLE, reason="schema_ownership"),
    Condition(3, "nobody attached", 409, "NOT_ATTACHED", leave, never_with=("other id", "commit open", "torn")),
    Condition(4, "other id", 409, "NOT_ATTACHMENT_HOLDER", lambda c: setattr(c, "header", "att_" + "A" * 43), when=2),
    Condition(5, "server field", 400, "MANIFEST_FIELD_NOT_CALLERS", lambda c: c.manifest.update(weights_sha256="0" * 64),
              fields=["weights_sha256"]),
    Condition(6, "field missing", 400, "INVALID_MANIFEST", lambda c: c.manifest.pop("domain"), reason="schema"),
    Condition(7, "run id", 400, "INVALID_RUN_ID", lambda c: set_run(c, "." + c.run[1:]), reason="pattern"),
    Condition(10, "step taken", 409, "CHECKPOINT_EXISTS", when=1,
              bring=lambda c: (c.server.checkpoints / c.run / "step-000007").mkdir(parents=True)),
    Condition(11, "run in a read root", 409, "CHECKPOINT_AMBIGUOUS", when=1,
              bring=lambda c: (c.server.read_root / c.run / "step-000001").mkdir(parents=True)),
    Condition(12, "name too long", 400, "INVALID_RUN_ID", lambda c: set_run(c, c.run.ljust(128, "x")),
              reason="name_too_long", max_length=255),
    Condition(13, "no disk", 507, "INSUFFICIENT_STORAGE", env={"WEIGHTS_SAVE_FREE_SPACE_FACTOR": "1e12"}),
    Condition(14, "no memory", 507, "INSUFFICIENT_MEMORY", available_bytes=1000,
              env={"WEIGHTS_TEST_MEM_AVAILABLE": "1000", "CAIRN": str(FAULTS)}),
    Condition(16, "slots", 409, "BARRIER_UNAVAILABLE", reason="request_slots", never_with=("commit open", "torn"),
              env={"WEIGHTS_BARRIER": "single", "MAX_CONCURRENT_REQUESTS": "2"}),
    Condition(16, "batching", 409, "BARRIER_UNAVAILABLE", reason="continuous_batching", never_with=("commit open", "torn"),
              env={"WEIGHTS_BARRIER": "single", "ENABLE_CONTINUOUS_BATCHING": "true"}),
    Condition(17.5, "commit open", 409, "WEIGHTS_NOT_CLEAN", Case.open_commit, weights_state="writing"),
    Condition(17.5, "torn", 409, "WEIGHTS_NOT_CLEAN", tear, env=WATCHDOG, weights_state="torn"),
]


@pytest.mark.parametrize("pair", pairs(CONDITIONS), ids=named)
def test_the_earlier_of_two_refusals_of_a_save_answers(pool, pair):
    if not FAULTS.exists() and any("CAIRN" in c.env for c in pair):
        pytest.skip("no test build (make faults)")
    check(pool, make_case, "save", pair)


@needs_faults
def test_while_another_save_runs_the_earlier_refusals_answer_and_then_that_one(pool):
    """Row 15, which also stands before 17.5: a commit that is open meanwhile."""
    server = pool.get({"CAIRN": str(FAULTS), "WEIGHTS_TEST_WRITE_DELAY_MS": "8000"})
    with contextlib.ExitStack() as stack:
        first, got = make_case(server, stack), []
        saving = threading.Thread(target=lambda: got.append(server.weights("save", first.body, first.header)))
        saving.start()
        wait_until(lambda: status(server)["save_in_progress"])
        every(CONDITIONS, functools.partial(make_case, attach=False), server, "save", 15, "PAUSE_IN_PROGRESS", first.header,
              held_by="save")
        first.open_commit()
        refused(server.weights("save", first.body, first.header), 409, "PAUSE_IN_PROGRESS", held_by="save")
        assert status(server)["save_in_progress"], "it ended too early"
        saving.join(60)
        granted(got[0], 201)
