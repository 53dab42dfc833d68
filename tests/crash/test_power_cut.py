"""The power goes at every moment of a save: what the disk may hold then, by the model in diskmodel.py, is the old state or the
new one, and the new one once the save was acknowledged. And each sync is needed: without it the model finds a bad state."""
import hashlib
import json
import random
import shutil

import diskmodel
import gate
import pytest
from crashlab import FULL, leftovers, servers, where  # noqa: F401

pytestmark = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")
COMPANIONS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def recorded_save(servers, where, step, new_run):
    """(directory with the state before, steps of the save, run)."""
    server = servers(gated=True)
    server.attach()
    assert server.save(0)[0] == 201
    run, before = "fresh" if new_run else "run", where + "/before"
    shutil.copytree(server.checkpoints, before, symlinks=True)
    done = []
    server.gate.arm(diskmodel.recorder(server.checkpoints, done))
    status, answer = server.save(step, run)
    server.gate.disarm()
    assert status == 201, answer
    server.kill()
    moved = [tuple(p.replace(server.checkpoints, before) if isinstance(p, str) else p for p in s) for s in done]
    return before, moved, run


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Verdict:
    """Judges what a cut left; a step's hash is taken once for each content."""

    def __init__(self):
        self.known = {}

    def problem(self, tree, steps, latest):
        """steps: those that must be there; latest: {run: what it may name}."""
        for path in tree:
            parts = path.split("/")
            if len(parts) == 2 and parts[1].startswith("step-") and not self.whole(tree, path):
                return f"{path} is there and not whole"
            if len(parts) == 2 and parts[1] == "latest" and f"{parts[0]}/{tree[path][1]}" not in tree:
                return f"{path} leads to {tree[path][1]}, which is not there"
        for step in steps:
            if step not in tree:
                return f"{step} was acknowledged and is gone"
        for run, allowed in latest.items():
            if tree.get(f"{run}/latest", (None, None))[1] not in allowed:
                return f"latest of {run} is {tree.get(f'{run}/latest')}"
        return None

    def whole(self, tree, path):
        parts = [tree.get(f"{path}/{n}") for n in ("manifest.json", "model.safetensors", *COMPANIONS)]
        key = tuple(map(id, parts))
        if None in parts:
            return False
        if key not in self.known:
            self.known[key] = (parts, self._judge(*parts))  # the parts are kept: their ids stay theirs
        return self.known[key][1]

    def _judge(self, manifest, weights, *companions):
        try:
            expected = json.loads(manifest)["weights_sha256"]
            return sha(weights) == expected and all(json.loads(c) for c in companions)
        except ValueError:
            return False


def states(before, done, run, name, random_cuts, lost=None):
    """(problem or None, tree) of every modelled cut; `lost`: this step of the save does not happen."""
    disk, verdict, rng = diskmodel.Disk(before), Verdict(), random.Random(20261129)
    kept = [s for i, s in enumerate(done) if i != lost]
    for i in range(len(kept) + 1):
        acknowledged = i == len(kept)
        steps = ["run/step-000000"] + ([f"{run}/{name}"] if acknowledged else [])
        latest = {"run": {"step-000000"}}
        latest[run] = {name} if acknowledged else {name, "step-000000" if run == "run" else None}
        for cut in disk.cuts(rng, random_cuts):
            tree = disk.after(cut)
            yield verdict.problem(tree, steps, latest), tree
        if i < len(kept):
            disk.feed(kept[i])


@pytest.mark.parametrize("new_run", [True, False], ids=["first_of_a_run", "later"])
def test_a_power_cut_leaves_old_or_new_and_never_loses_what_was_acknowledged(where, servers, new_run):
    before, done, run = recorded_save(servers, where, 1, new_run)
    assert [s[0] for s in done].count("sync") >= 8
    count, seen = 0, {}
    for problem, tree in states(before, done, run, "step-000001", 200 if FULL else 10):
        assert problem is None, problem
        count += 1
        visible = frozenset(p for p in tree if ".tmp-" not in p) | {tree.get(run + "/latest")}
        seen.setdefault(visible, tree)
    print(f"{count} cuts, {len(seen)} distinct states")
    assert count > 300 and len(seen) >= 3
    for i, tree in enumerate(seen.values()):
        starts_and_saves(where, servers, tree, run, i)


def starts_and_saves(where, servers, tree, run, number):
    """The product itself on what the cut left: it cleans up, loads what is there, and the same step can be saved."""
    there = f"{run}/step-000001" in tree
    shutil.rmtree(where + "/checkpoints")
    diskmodel.write_tree(tree, where + "/checkpoints")
    server = servers()
    assert leftovers(server.checkpoints) == []
    assert server.load(path="run/step-000000")[0] == 200
    server.attach()
    status, answer = server.save(1, run)
    assert status == (409 if there else 201), (number, answer)
    assert server.load(path=f"{run}/step-000001")[0] == 200
    if not there or run != "run":
        assert server.load(path=f"{run}/latest")[1]["data"]["name"].endswith(":step-1")
    server.kill()


@pytest.mark.parametrize("new_run", [True, False], ids=["first_of_a_run", "later"])
def test_each_sync_of_a_save_is_needed(where, servers, new_run):
    before, done, run = recorded_save(servers, where, 1, new_run)
    syncs = [i for i, s in enumerate(done) if s[0] == "sync"]
    for i in syncs:
        assert any(p for p, _ in states(before, done, run, "step-000001", 0, lost=i)), f"nothing needs sync of {done[i][1]}"
