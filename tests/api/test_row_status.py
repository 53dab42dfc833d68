"""The status of a catalogue row while the catalogue takes no writes (a full disk): it is told as it is, nobody waits for ever,
and it is written as soon as there is room."""
import contextlib
import shutil
import sqlite3

import pytest
from conftest import MODELS, OPERATOR, refusing_writes
from trainer import Trainer, granted, load, refused

NO_NOTES = "UPDATE ON models WHEN NEW.status IN ('loaded', 'ready', 'error')"


@pytest.fixture
def own(make_server):
    server = make_server()
    yield server
    assert server.stop() == 0


def written(server, row):
    """The status in the database."""
    with contextlib.closing(sqlite3.connect(server.state / "cairn.db", timeout=60)) as db:
        return db.execute("SELECT status FROM models WHERE id = ?", (row,)).fetchone()[0]


def told(server, row):
    one, rows = granted(server.get(f"/api/models/{row}")), granted(server.get("/api/models"))
    assert next(r for r in rows if r["id"] == row)["status"] == one["status"]
    return one["status"]


def test_a_load_whose_end_cannot_be_noted_is_loaded(own):
    row = own.register(MODELS / "tiny-qwen3")["id"]
    with refusing_writes(own, NO_NOTES):
        own.load(row)  # waits until the row says so
        assert told(own, row) == "loaded" and told(own, own.row) == "ready"
        assert written(own, row) == "loading"
    assert told(own, row) == "loaded" and told(own, own.row) == "ready"
    assert written(own, row) == "loaded" and written(own, own.row) == "ready"


def test_a_load_whose_failure_cannot_be_noted_says_why(own, tmp_path):
    shutil.copytree(MODELS / "tiny-qwen3", tmp_path / "broken")
    (tmp_path / "broken/tokenizer.json").write_text("{")
    row = own.register(tmp_path / "broken")["id"]
    with refusing_writes(own, NO_NOTES):
        own.post(f"/api/models/{row}/load")
        data = own.settled(row)
        assert data["status"] == "error" and "tokenizer.json" in data["error_message"]
        assert written(own, row) == "loading"
    assert own.settled(row) == data and written(own, row) == "error"


def test_what_is_unloaded_but_not_noted_is_kept_and_deleted_later(own):
    with refusing_writes(own, NO_NOTES):
        assert granted(own.post(f"/api/models/{own.row}/unload"))["status"] == "ready"
        assert told(own, own.row) == "ready" and written(own, own.row) == "loaded"
        refused(own.call("DELETE", f"/api/models/{own.row}"), 500, "INTERNAL_ERROR")
    granted(own.call("DELETE", f"/api/models/{own.row}"))


def test_a_later_load_counts_and_not_what_was_kept(own):
    with refusing_writes(own, NO_NOTES):
        granted(own.post(f"/api/models/{own.row}/unload"))
        own.load(own.row)
        assert told(own, own.row) == "loaded"
    assert told(own, own.row) == "loaded" and written(own, own.row) == "loaded"
    assert own.complete(max_tokens=1).status == 200


def test_the_row_of_a_checkpoint_whose_load_failed_can_be_deleted(own):
    holder = Trainer(own)
    saved = granted(holder.save("run", 1), 201)
    holder.detach()
    granted(own.post(f"/api/models/{own.row}/unload"))
    other = own.register(MODELS / "tiny-qwen3")["id"]
    own.load(other)
    with refusing_writes(own, NO_NOTES):
        data = granted(load(own, None, OPERATOR, name=saved["name"]))
        carrier = next(r for r in granted(own.get("/api/models")) if r["checkpoint"])
        assert carrier["status"] == "loaded" and data["mode"] == "full_reload"
    granted(own.post(f"/api/models/{carrier['id']}/unload"))
    granted(own.call("DELETE", f"/api/models/{carrier['id']}"))
