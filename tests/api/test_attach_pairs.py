"""Every refusal of attach, detach, heartbeat, quiesce, commit-begin, commit-end and resume, alone and in pairs
(docs/api/weights.md, "A trainer's step"). MODEL_BUSY and PAUSE_IN_PROGRESS need something that runs: test_weights_running.py."""
import pytest
from conftest import MODELS, OPERATOR, TRAINER
from pairs import Case, Condition, Pool, check, named, pairs
from test_save_pairs import WATCHDOG, tear
from trainer import granted


@pytest.fixture(scope="module")
def pool(make_server, tmp_path_factory):
    made = Pool(make_server, tmp_path_factory.mktemp("pairs"))
    yield made
    made.close()


class HolderCase(Case):
    """The holder asks, unless a condition says otherwise."""

    def __init__(self, server, stack):
        super().__init__(server, stack)
        if server.env["WEIGHTS_TOKENS"]:
            self.attach()


def leave(case):
    case.stack.close()
    case.holder = None


def unload(case):
    where = f"/api/models/{case.server.row}"
    granted(case.server.post(where + "/unload"))
    case.stack.callback(case.server.load, case.server.row)


def f32_resident(case):
    row = case.server.register(MODELS / "tiny-qwen3-sharded-f32")
    case.stack.callback(case.server.call, "DELETE", f"/api/models/{row['id']}")
    case.stack.callback(case.server.load, case.server.row)
    case.server.load(row["id"])


def quiesce(case):
    case.holder.do("quiesce")
    case.stack.callback(case.holder.do, "resume")


def operator_forces(case):
    case.body["force"], case.token = True, OPERATOR


OPEN = ("commit open", "torn")
TOKEN = [Condition(1, "token", 401, "UNAUTHORIZED", lambda c: setattr(c, "token", "y" * 20), when=9),
         Condition(1, "no tokens", 403, "WEIGHTS_DISABLED", env={"WEIGHTS_TOKENS": ""},
                   never_with=(*OPEN, "other id", "attached", "live", "quiesced", "not quiesced", "no commit")),
         Condition(2, "body", 422, "VALIDATION_ERROR", lambda c: c.body.update(extra=1))]
HOLDER = TOKEN + [
    Condition(3, "nobody attached", 409, "NOT_ATTACHED", leave,
              never_with=(*OPEN, "other id", "live", "quiesced", "not quiesced", "no commit")),
    Condition(4, "other id", 409, "NOT_ATTACHMENT_HOLDER", lambda c: setattr(c, "header", "att_" + "A" * 43), when=9,
              attached_identity="forge")]
WRITING = Condition(7, "commit open", 409, "WEIGHTS_NOT_CLEAN", Case.open_commit, weights_state="writing")
TORN = Condition(7, "torn", 409, "WEIGHTS_NOT_CLEAN", tear, env=WATCHDOG, weights_state="torn")
SLOTS = Condition(5, "slots", 409, "BARRIER_UNAVAILABLE", reason="request_slots", never_with=(*OPEN, "quiesced"),
                  env={"WEIGHTS_BARRIER": "single", "MAX_CONCURRENT_REQUESTS": "2"})
BATCHING = Condition(5, "batching", 409, "BARRIER_UNAVAILABLE", reason="continuous_batching", never_with=(*OPEN, "quiesced"),
                     env={"WEIGHTS_BARRIER": "single", "ENABLE_CONTINUOUS_BATCHING": "true"})

ROUTES = {
    "attach": (Case, TOKEN + [
        Condition(3, "attached", 409, "ALREADY_ATTACHED", Case.attach, never_with=("no model", "F32"), identity="forge",
                  stale=False),
        Condition(4, "no model", 400, "MODEL_NOT_LOADED", unload, never_with=("F32",)),
        Condition(5, "F32", 400, "NOT_ATTACHABLE", f32_resident, reason="dtype")]),
    "detach": (HolderCase, HOLDER + [WRITING]),
    "heartbeat": (HolderCase, HOLDER),
    "quiesce": (HolderCase, HOLDER + [SLOTS, BATCHING, WRITING, TORN,
                                      Condition(8, "quiesced", 409, "ALREADY_QUIESCED", quiesce, never_with=OPEN)]),
    "resume": (HolderCase, HOLDER + [WRITING, TORN,
                                     Condition(8, "not quiesced", 409, "NOT_QUIESCED", never_with=OPEN)]),
    "commit-begin": (HolderCase, HOLDER + [WRITING, TORN,
                                           Condition(8, "not quiesced", 409, "NOT_QUIESCED", never_with=OPEN)]),
    "commit-end": (HolderCase, HOLDER + [Condition(8, "no commit", 409, "COMMIT_NOT_OPEN")]),
}
FORCED = [Condition(1, "token", 401, "UNAUTHORIZED", lambda c: setattr(c, "token", "y" * 20), when=9),
          Condition(2, "body", 422, "VALIDATION_ERROR", lambda c: c.body.update(extra=1)),
          Condition(3, "trainer", 403, "FORBIDDEN", lambda c: setattr(c, "token", TRAINER), role="trainer",
                    allowed_roles=["operator"], when=8, never_with=("token",)),
          Condition(4, "nobody attached", 409, "NOT_ATTACHED", leave, never_with=("live",)),
          Condition(5, "live", 409, "ATTACHMENT_NOT_STALE", identity="forge")]


@pytest.mark.parametrize("route,pair", [(route, pair) for route, (_, conditions) in ROUTES.items()
                                        for pair in pairs(conditions)],
                         ids=lambda v: v if isinstance(v, str) else named(v))
def test_the_earlier_of_two_refusals_of_a_trainer_s_step_answers(pool, route, pair):
    check(pool, ROUTES[route][0], route, pair)


@pytest.mark.parametrize("pair", pairs(FORCED), ids=named)
def test_the_earlier_of_two_refusals_of_a_forced_detach_answers(pool, pair):
    def make(server, stack):
        case = HolderCase(server, stack)
        case.header = None
        operator_forces(case)
        return case

    check(pool, make, "detach", pair)
