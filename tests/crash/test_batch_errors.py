"""A system call under an upload or a batch fails (EIO): the upload says so and leaves nothing; a batch that was created ends with
every line answered once."""
import errno
import sys
from pathlib import Path

import gate
import pytest
from crashlab import judge_at, places, record, sample, servers, where  # noqa: F401
from test_training_errors import NEVER_FAIL, Face

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from batch_client import BOUNDARY, ENDED, form, jsonl, line  # noqa: E402
from conftest import wait_until  # noqa: E402

pytestmark = pytest.mark.skipif(not gate.is_supported(), reason="no seccomp notification here, or not x86-64 Linux")


class Client:
    def __init__(self, server):
        self.face, self.model = Face(server), server.status()["model"]["name"]
        self.files = Path(server.where, "state/batch_files")
        self.input = jsonl([*(line(self, f"r{i}") for i in range(3)), line(self, "bad", max_tokens=-1)])

    def upload(self):
        body = form([('name="purpose"', b"batch"), ('name="file"; filename="l.jsonl"', self.input)])
        return self.face.call("POST", "/v1/files", body, {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})

    def batch(self):
        """The batch's end; None: it was refused."""
        uploaded = self.upload()
        if uploaded.status != 200:
            return None
        made = self.face.call("POST", "/v1/batches", {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/completions",
                                                      "completion_window": "24h"})
        if made.status != 200:
            return None

        def look():
            answer = self.face.call("GET", f"/v1/batches/{made.json()['id']}")
            return answer.status == 200 and answer.json()["status"] in ENDED and answer.json()
        return wait_until(look)

    def lines(self, name):
        answer = self.face.call("GET", f"/v1/files/{name}/content")
        assert answer.status == 200, answer
        return len(answer.body.splitlines())

    def content(self):
        """Uploads, reads and deletes a file: the statuses."""
        uploaded = self.upload()
        if uploaded.status != 200:
            return (uploaded.status,)
        path = f"/v1/files/{uploaded.json()['id']}"
        read, gone = self.face.call("GET", path + "/content"), self.face.call("DELETE", path)
        assert read.status != 200 or read.body == self.input
        return uploaded.status, read.status, gone.status

    def check_completed(self, batch):
        assert batch["status"] == "completed", batch
        assert batch["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
        assert (self.lines(batch["output_file_id"]), self.lines(batch["error_file_id"])) == (3, 1)


def failing(server, wanted, every):
    """Each place in turn, while it fails."""
    for place in sample([p for p in wanted if p.split()[0] not in NEVER_FAIL], every):
        server.gate.arm(judge_at(server.where, place, errno.EIO))
        yield place
        server.gate.disarm()


def test_an_upload_whose_system_call_fails_leaves_nothing(servers, where):  # noqa: F811
    server = servers(gated=True)
    client = Client(server)
    client.content()
    _, calls = record(server, client.content)
    statuses = set()
    for place in failing(server, places(where, calls), 1):
        got = client.content()
        statuses.add(got)
        assert set(got) <= {200, 500}, (place, got)
    assert len(statuses) == 4  # all went well, or one of the three failed
    assert client.content() == (200, 200, 200)
    listed = {f["id"] for f in client.face.call("GET", "/v1/files?limit=100").json()["data"]}
    wait_until(lambda: {f.name for f in client.files.iterdir()} == listed)  # what could not be removed goes soon
    server.stop()
    server = servers()
    assert {f.name for f in client.files.iterdir()} == listed


def test_a_batch_whose_system_call_fails_answers_every_line_once(servers, where):  # noqa: F811
    server = servers(gated=True, BATCH_WAIT_POLL_S="0.05")
    client = Client(server)
    client.check_completed(client.batch())
    _, calls = record(server, client.batch)
    ended = 0
    for place in failing(server, places(where, calls), 5):
        batch = client.batch()
        if batch:
            ended += 1
            client.check_completed(batch)
    assert ended > 3
    client.check_completed(client.batch())
