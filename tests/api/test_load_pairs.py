"""Every refusal of POST /api/weights/load, alone and in pairs (docs/api/weights.md, "POST load"). The checkpoint that is
named is of another base, so that it would be a full reload and the rows of one count. Rows 12, 14 and 24 to 26 need
something that runs: test_weights_running.py and test_weights_faults.py."""
import shutil

import foreign
import pytest
from foreign import Foreign
from pairs import COUNTER, Case, Condition, Pool, check, named, pairs
from test_save_pairs import UNUSABLE
from trainer import granted, load

FILES = ("two roots", "no such step", "manifest", "no weights", "hash", "header", "dtype", "remote code", "tokenizer",
         "quantized", "config dtype", "pipe", "link out", "name too long", "registered")
ATTACHED = ("commit open", "attached", "mode")


@pytest.fixture(scope="module")
def pool(make_server, tmp_path_factory):
    directory = tmp_path_factory.mktemp("pairs")
    (directory / "schema.json").write_text("{}")
    UNUSABLE["WEIGHTS_SCHEMA_FILE"] = str(directory / "schema.json")
    made = Pool(make_server, directory)
    yield made
    made.close()


class LoadCase(Case):
    base = "org/reload"

    @property
    def ckpt(self):
        """Made when first asked for, so that its base can be chosen before."""
        if not hasattr(self, "made"):
            self.made = Foreign(self.server.checkpoints, base=self.base, run=f"pair-{next(COUNTER)}")
        return self.made

    def everything(self):
        if not self.body.keys() & {"name", "path", "model_id"}:
            self.body["path"] = self.ckpt.path
        return super().everything()


def carrier_row(case):
    """A checkpoint's own row, given as model_id."""
    known = Foreign(case.server.checkpoints, base="org/carrier", run=f"pair-{next(COUNTER)}")
    granted(load(case.server, path=known.path))
    rows = granted(case.server.get("/api/models"))
    case.body["model_id"] = next(r["id"] for r in rows if r["name"] == known.name)
    granted(load(case.server, model_id=case.server.row))


def lease(case):
    where = f"/api/models/{case.server.row}/lease"
    held = granted(case.server.post(where, {"holder": "bench", "reason": "a run"}), 201)
    case.stack.callback(case.server.call, "DELETE", where, None, {"X-miLLM-Lease": held["lease_id"]})


def attached_without_header(case):
    case.attach()
    case.header = None


def two_roots(case):
    (case.server.read_root / case.ckpt.run / "step-000009").mkdir(parents=True)


def no_such_step(case):
    shutil.rmtree(case.ckpt.dir)
    case.ckpt.dir.with_name("step-000077").mkdir()


def register(case):
    row = case.server.register(case.ckpt.dir, custom_name=f"taken-{next(COUNTER)}")
    case.stack.callback(case.server.call, "DELETE", f"/api/models/{row['id']}")


def spoil(how):
    return lambda case: how(case.ckpt)


def file_condition(row, name, reason, how, when, never_with=(), code="CHECKPOINT_NOT_LOADABLE", status=400):
    details = {"reason": reason} if reason else {}
    return Condition(row, name, status, code, spoil(how), when=when, never_with=never_with, **details)


CONDITIONS = [
    Condition(1, "token", 401, "UNAUTHORIZED", lambda c: setattr(c, "token", "y" * 20)),
    Condition(1, "no tokens", 403, "WEIGHTS_DISABLED", env={"WEIGHTS_TOKENS": ""}, never_with=(*ATTACHED, "carrier row")),
    Condition(2, "body", 422, "VALIDATION_ERROR", lambda c: c.body.update(extra=1)),
    Condition(2, "two ways", 422, "VALIDATION_ERROR", lambda c: c.body.update(path="a/step-000001", name="b:a:step-1"),
              never_with=("path", "name", "no such row", "carrier row")),
    Condition(3, "schema", 400, "INVALID_MANIFEST", env=UNUSABLE, never_with=("no such row", "carrier row"),
              reason="schema_ownership"),
    Condition(4, "path", 400, "INVALID_CHECKPOINT_PATH", lambda c: c.body.update(path="a/b/step-000001"),
              never_with=("carrier row", *FILES), reason="shape"),
    Condition(4, "name", 400, "INVALID_RUN_ID", lambda c: c.body.update(name="b:a:step-01"),
              never_with=("carrier row", *FILES), reason="name_format"),
    Condition(4, "no such row", 404, "MODEL_NOT_FOUND", lambda c: c.body.update(model_id=10 ** 9),
              never_with=("carrier row", "mode", *FILES)),
    Condition(5, "carrier row", 400, "CHECKPOINT_NOT_LOADABLE", carrier_row, never_with=("mode", "slots", *FILES), when=-1,
              reason="carrier_row"),
    Condition(6, "two roots", 409, "CHECKPOINT_AMBIGUOUS", two_roots, when=8),
    Condition(7, "no such step", 404, "CHECKPOINT_NOT_FOUND", no_such_step, when=9, never_with=FILES[2:]),
    file_condition(8, "manifest", "schema", foreign.unknown_key, 7, code="INVALID_MANIFEST"),
    Condition(9, "commit open", 409, "WEIGHTS_NOT_CLEAN", Case.open_commit, weights_state="writing"),
    Condition(10, "attached", 409, "ALREADY_ATTACHED", attached_without_header, when=1, stale=False),
    Condition(11, "leased", 409, "MODEL_LEASED", lease, holder="bench", operation="weights_load"),
    Condition(13, "slots", 409, "BARRIER_UNAVAILABLE", reason="request_slots", never_with=("commit open",),
              env={"WEIGHTS_BARRIER": "single", "MAX_CONCURRENT_REQUESTS": "2"}),
    file_condition(15, "no weights", "safetensors_header", foreign.no_weights, 6, ("hash", "header", "dtype")),
    file_condition(16, "hash", None, foreign.flip, 5, code="CHECKPOINT_HASH_MISMATCH", status=422),
    file_condition(17, "header", "safetensors_header", foreign.cut, 4),
    Condition(18, "mode", 409, "ALREADY_ATTACHED", Case.attach, never_with=("attached",), mode="full_reload"),
    file_condition(19.1, "dtype", "dtype", foreign.as_f32, 3),
    file_condition(19.2, "remote code", "remote_code", foreign.remote_code, 4),
    file_condition(19.3, "tokenizer", "incomplete", foreign.no_tokenizer, 4),
    file_condition(19.4, "quantized", "quantized", foreign.quantized, 4),
    file_condition(19.5, "config dtype", "dtype", foreign.other_dtype, 4),
    file_condition(19.6, "pipe", "unsafe_file", foreign.pipe, 4),
    file_condition(19.7, "link out", "unsafe_file", foreign.link_out, 4),
    Condition(20, "name too long", 400, "INVALID_RUN_ID", lambda c: setattr(c, "base", "org/" + "b" * 240), when=-1,
              reason="name_too_long", max_length=255),
    Condition(21, "registered", 409, "LOCAL_PATH_REGISTERED", register, when=2),
    Condition(22, "gpu", 404, "GPU_NOT_FOUND", lambda c: c.body.update(gpu="cuda:0"), requested="cuda:0"),
]


@pytest.mark.parametrize("pair", pairs(CONDITIONS), ids=named)
def test_the_earlier_of_two_refusals_of_a_load_answers(pool, pair):
    check(pool, LoadCase, "load", pair)
