"""Files that cannot be removed (EIO) are not told to whoever asked for something else: what is gone for everybody is answered
as that, and the files are removed later, by the same process or by the next."""
import errno
import os
import time
from pathlib import Path

import gate
import pytest
from crashlab import leftovers, model_copy, servers, where  # noqa: F401
from test_batch_errors import Client as Files
from test_training_errors import Client
from weaver_http import KEY

pytestmark = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")


def no_removal(below):
    return lambda call: errno.EIO if call.name.startswith("unlink") and call.path and below in call.path else gate.PASS


def wait_empty(look):
    until = time.monotonic() + 60
    while look():
        assert time.monotonic() < until, look()
        time.sleep(0.05)


def files_below(path):
    return [name for _, _, names in os.walk(path) for name in names if name != ".weaver.lock"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_training_checkpoint_whose_files_stay_is_deleted_and_they_go_later(where, servers, restart):  # noqa: F811
    env = {"WEAVER_API_KEYS": f"team:{KEY}"}
    server = servers(gated=True, model=None, **env)
    status, answer = server.call("POST", "/api/models", {"source": "local", "local_path": model_copy(where, "tiny-llama")})
    assert status == 202, answer
    client, home = Client(server), Path(where, "state/weaver")
    server.gate.arm(no_removal("state/weaver"))
    assert client.ask("DELETE", f"/checkpoints/{client.saved['id']}") is None
    assert client.run.checkpoints() == [] and files_below(home)
    time.sleep(2.5)  # the sweep has tried again, in vain
    assert files_below(home) and "weaver_checkpoint" in server.log_text()
    if restart:
        server.kill()
        servers(model=None, **env)
    else:
        server.gate.disarm()
    wait_empty(lambda: files_below(home))
    assert leftovers(str(home)) == []


def test_a_file_that_stays_is_deleted_and_goes_later(where, servers):  # noqa: F811
    server = servers(gated=True)
    client = Files(server)
    path = f"/v1/files/{client.upload().json()['id']}"
    server.gate.arm(no_removal("batch_files"))
    assert client.face.call("DELETE", path).status == 200
    assert client.face.call("GET", path + "/content").status == 404 and os.listdir(client.files)
    server.gate.disarm()
    wait_empty(lambda: os.listdir(client.files))


def test_a_save_that_fails_says_whether_something_stayed_and_it_goes_later(where, servers):  # noqa: F811
    server = servers(gated=True)
    server.attach()
    server.gate.arm(lambda call: errno.EIO if call.path and "/.tmp-" in call.path and
                    (call.name.startswith("unlink") or "manifest.json" in call.path) else gate.PASS)
    status, answer = server.save(1)
    assert status == 500 and answer["error"]["code"] == "CHECKPOINT_WRITE_FAILED", answer
    assert "could not be removed" in answer["error"]["message"] and leftovers(server.checkpoints)
    server.gate.disarm()
    wait_empty(lambda: leftovers(server.checkpoints))
    assert server.save(1)[0] == 201
