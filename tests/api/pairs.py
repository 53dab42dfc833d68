"""Refusals in pairs: each condition alone, and every two of a route that can hold at once. The one that stands earlier in
the route's documented order answers, and nothing is changed.

A Condition says where it stands, what the answer is, and how it is brought about: `env` for the whole server, `bring` for
one request. `never_with` names the conditions beside which it cannot hold."""
import contextlib
import itertools
import shutil

from conftest import MODELS, TRAINER
from trainer import Trainer, files_below, granted, refused, status

VOLATILE = {"attachment": ("last_seen_at",), "commit": ("open_ms",), "hold": ("expires_at",)}
COUNTER = itertools.count(1)


class Condition:
    def __init__(self, row, name, status_code, code, bring=None, env=None, never_with=(), when=0, **details):
        self.row, self.name, self.status, self.code, self.details = row, name, status_code, code, details
        self.bring, self.env, self.never_with, self.when = bring or (lambda case: None), env or {}, set(never_with), when

    def __repr__(self):
        return f"{self.row} {self.name}"


def pairs(conditions):
    """Alone (a, a) and together (a, b), the earlier first; one of two that stand in the same row is not later."""
    return [(a, b) for a, b in itertools.combinations_with_replacement(sorted(conditions, key=lambda c: c.row), 2)
            if a is b or (a.row < b.row and a.name not in b.never_with and b.name not in a.never_with
                          and not (a.env and b.env and set(a.env) & set(b.env)))]


def named(pair):
    first, second = pair
    return f"{first.row}-{first.name}" if first is second else f"{first.row}-{first.name}<{second.row}-{second.name}"


class Pool:
    """Servers by environment, all with one repository whose name is long, and a read root."""

    REPO = "org/" + "b" * 150

    def __init__(self, make_server, tmp):
        self.make_server, self.tmp, self.servers = make_server, tmp, {}
        home = tmp / "cache" / f"huggingface/{self.REPO.replace('/', '--')}--FP16"
        shutil.copytree(MODELS / "tiny-llama", home)

    def get(self, env):
        key = tuple(sorted(env.items()))
        if key not in self.servers:
            read_root = self.tmp / f"read-{len(self.servers)}"
            read_root.mkdir()
            server = self.make_server({"MODEL_CACHE_DIR": str(self.tmp / "cache"), "WEIGHTS_QUIESCE_MAX_HOLD_S": "600",
                                       "WEIGHTS_CHECKPOINT_READ_ROOTS": str(read_root), **env}, model=None)
            row = granted(server.post("/api/models", {"source": "huggingface", "repo_id": self.REPO}), 202)
            server.load(row["id"])
            server.model, server.row, server.read_root = row["name"], row["id"], read_root
            self.servers[key] = server
        return self.servers[key]


    def close(self):
        for server in self.servers.values():
            server.stop()


class Case:
    """One request on its way to a refusal; `stack` undoes what was brought about."""

    def __init__(self, server, stack):
        self.server, self.stack = server, stack
        self.token, self.header, self.body, self.holder = TRAINER, None, {}, None

    def attach(self):
        if not self.holder:
            self.holder = Trainer(self.server)
            self.header = self.holder.id
            self.stack.callback(self.holder.detach)
        return self.holder

    def open_commit(self):
        holder = self.attach()
        for route, end in (("quiesce", "resume"), ("commit-begin", "commit-end")):
            holder.do(route)
            self.stack.callback(holder.do, end)

    def everything(self):
        """All that a refusal must leave alone."""
        seen = status(self.server)
        for key, fields in VOLATILE.items():
            for field in fields if seen[key] else ():
                seen[key].pop(field, None)
        rows = granted(self.server.get("/api/models"))
        for row in rows:
            (row["lease"] or {}).pop("seconds_remaining", None)
        return (seen, rows, files_below(self.server.checkpoints),
                files_below(self.server.read_root), self.holder and self.holder.digest())


def check(pool, make_case, route, pair):
    """Brings both about and sends the request."""
    first, second = pair
    both = {id(c): c for c in pair}.values()
    with contextlib.ExitStack() as stack:
        case = make_case(pool.get({k: v for c in both for k, v in c.env.items()}), stack)
        for condition in sorted(both, key=lambda c: c.when):
            condition.bring(case)
        before = case.everything()
        details = refused(case.server.weights(route, case.body, case.header, case.token), first.status, first.code)
        assert {k: details.get(k) for k in first.details} == first.details, details
        assert case.everything() == before


OTHER_STATE = ("nobody attached", "attached", "mode", "commit open", "torn", "carrier row", "leased")


def every(conditions, make_case, server, route, row, code, attachment, **details):
    """While row `row` holds, brought about by something that runs: who stands before it answers for itself, what stands
    behind it and nothing at all get its answer. What would need another state of the server is left out."""
    for condition in [None] + [c for c in conditions if not c.env and c.name not in OTHER_STATE]:
        with contextlib.ExitStack() as stack:
            case = make_case(server, stack)
            case.header = attachment
            if condition:
                condition.bring(case)
            before = case.everything()
            answer = server.weights(route, case.body, case.header, case.token)
            if condition and condition.row < row:
                refused(answer, condition.status, condition.code)
            else:
                refused(answer, 409, code, **details)
            assert case.everything() == before
