"""A request of /v1 that names a model which is not loaded, and cannot be: the refusal is one of /v1, and what answers stays."""
import shutil

import pytest
from conftest import MODELS, check_error, refusing_writes
from trainer import granted, status


def ask(server, name, path="/v1/completions"):
    return server.post(path, {"model": name, **({"prompt": "a"} if path.endswith("/completions") else {"input": "a"})})


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
def test_a_model_whose_files_are_broken_fails_the_request_and_the_resident_stays(make_server, tmp_path, path):
    own = make_server()
    shutil.copytree(MODELS / "tiny-qwen3", tmp_path / "broken")
    (tmp_path / "broken/tokenizer.json").write_text("{")
    row = own.register(tmp_path / "broken")
    error = check_error(ask(own, row["name"], path), 500, "model_load_failed")
    assert "tokenizer.json" in error["message"]
    assert status(own)["model"]["name"] == own.model and own.complete(max_tokens=1).status == 200
    assert granted(own.get(f"/api/models/{row['id']}"))["status"] == "error"
    assert own.stop() == 0


def test_a_model_whose_row_cannot_be_held_is_not_loaded(make_server):
    own = make_server()
    row = own.register(MODELS / "tiny-qwen3")
    with refusing_writes(own, "UPDATE ON models"):
        check_error(ask(own, row["name"]), 500)
        assert status(own)["model"]["name"] == own.model
    assert ask(own, row["name"]).status == 200
    assert own.stop() == 0


def test_a_directory_that_went_away_fails_the_request(make_server, tmp_path):
    own = make_server()
    shutil.copytree(MODELS / "tiny-qwen3", tmp_path / "gone")
    row = own.register(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    check_error(ask(own, row["name"]), 500, "model_load_failed")
    assert own.complete(max_tokens=1).status == 200
    assert own.stop() == 0
