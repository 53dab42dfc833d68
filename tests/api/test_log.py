"""A reader of standard error that stalls stalls no request; what is dropped is counted, and never an audit line."""
import http.client
import json
import os
import re
import threading

import pytest
from conftest import wait_until
from trainer import Trainer, status


class Unread:
    """A server whose log is a pipe (state/server.log) that is read from read_on() on."""

    def __init__(self, make_server, state, **env):
        os.mkfifo(state / "server.log")
        self.end = os.open(state / "server.log", os.O_RDONLY | os.O_NONBLOCK)
        self.server = make_server({"LOG_LEVEL": "DEBUG", **env}, state=state)
        self.text, self.reader = b"", threading.Thread(target=self.drain)

    def drain(self):
        os.set_blocking(self.end, True)
        while block := os.read(self.end, 65536):
            self.text += block
        os.close(self.end)

    def read_on(self):
        self.reader.start()

    def lines(self):
        """All lines, of a server that has been stopped."""
        self.reader.join()
        return self.text.decode().splitlines()

    def flood(self):
        """Requests that leave long lines, until lines are dropped."""
        conn = http.client.HTTPConnection(self.server.host, self.server.port, timeout=120)
        while not self.dropped():
            for _ in range(200):
                conn.request("GET", "/api/" + 900 * "x")
                assert conn.getresponse().read() == b'{"detail":"Not Found"}'
        conn.close()

    def dropped(self):
        return int(re.search(rb"^cairn_log_dropped_total (\d+)$", self.server.get("/metrics").body, re.M)[1])


def audits(lines, operation):
    return [x for x in lines if x.startswith('{"event":"weights_audit"') and json.loads(x)["operation"] == operation]


@pytest.fixture
def unread(make_server, tmp_path):
    return Unread(make_server, tmp_path, WEIGHTS_QUIESCE_MAX_HOLD_S="1")


def test_a_log_that_nobody_reads_stalls_no_request(unread):
    own = unread.server
    trainer = Trainer(own)
    unread.flood()
    # The answer of a protected route waits for its audit line; what it did is done, and nobody else waits.
    quiesce = threading.Thread(target=trainer.do, args=["quiesce"])
    quiesce.start()
    wait_until(lambda: status(own)["hold_timeouts"])  # the engine's thread has told it on its own
    assert own.complete("a", max_tokens=2).status == 200
    assert quiesce.is_alive()
    unread.read_on()
    quiesce.join()
    trainer.detach()
    dropped = unread.dropped()
    assert own.stop() == 0
    lines = unread.lines()
    for operation in ("weights_attach", "weights_quiesce", "weights_hold_timeout", "weights_detach"):
        assert len(audits(lines, operation)) == 1, operation
    told = [int(x.split("lines=")[1].split()[0]) for x in lines if " log_dropped " in x]
    assert sum(told) >= dropped > 0


def test_a_server_whose_log_is_not_read_stops(unread):
    own = unread.server
    unread.flood()
    attach = threading.Thread(target=own.weights, args=["attach"])
    attach.start()
    wait_until(lambda: status(own)["attached"])
    assert own.stop() == 0
    attach.join()
    unread.read_on()
    unread.lines()
