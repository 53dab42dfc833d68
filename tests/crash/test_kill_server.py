"""The server is killed with SIGKILL at random moments of saves: a step is whole or absent, `latest` names a whole one, the
next start cleans up, and the same step can be saved again. (test_kill_matrix.py kills at chosen calls.)"""
import http.client
import random
import threading
import time

from crashlab import check_disk, leftovers, problem_of, servers, where  # noqa: F401

KILLS = 20


def test_a_save_killed_at_twenty_random_moments_is_whole_or_absent(where, servers):
    rng, killed_inside, acknowledged = random.Random(20261129), 0, [("run", "step-000000")]
    server = servers()
    server.attach()
    began = time.monotonic()
    assert server.save(0)[0] == 201
    took = time.monotonic() - began
    for step in range(1, KILLS + 1):
        answered, name = [], f"step-{step:06d}"
        saver = threading.Thread(target=lambda n=step: quietly(lambda: answered.append(server.save(n)[0])))
        saver.start()
        time.sleep(rng.uniform(0, took * 1.3))
        server.kill()
        saver.join()
        killed_inside += not answered
        if answered == [201]:
            acknowledged.append(("run", name))
        check_disk(server.checkpoints, acknowledged)
        server = servers()
        assert leftovers(server.checkpoints) == []
        server.attach()
        status, answer = server.save(step)
        if status == 409:
            assert answer["error"]["code"] == "CHECKPOINT_EXISTS"
            assert problem_of(f"{server.checkpoints}/run/{name}") is None
        else:
            assert status == 201, answer
            assert server.load(path="run/latest")[1]["data"]["name"].endswith(f":step-{step}")
    server.stop()
    assert killed_inside >= 5, f"only {killed_inside} of {KILLS} kills came before the answer"


def quietly(function):
    try:
        function()
    except (OSError, http.client.HTTPException):
        pass
