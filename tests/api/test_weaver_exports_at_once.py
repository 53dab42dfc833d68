"""Several exports of one checkpoint at the same moment."""
import threading

from conftest import MODELS
from weaver_http import ENV, Run, Weaver


def test_of_exports_that_are_forced_at_once_the_newest_stays(make_server):
    server = make_server(ENV, model=None)
    server.register(MODELS / "tiny-llama")
    w = Weaver(server).connect()
    path = f"/checkpoints/{Run(w, lora_config={'rank': 1, 'seed': 3}).save()['id']}"
    for _ in range(6):
        made = []
        at_once = [threading.Thread(target=lambda: made.append(w.run(path + "/export", {"force": True}))) for _ in range(6)]
        for t in at_once:
            t.start()
        for t in at_once:
            t.join()
        newest = max(made, key=lambda a: (a["created_at"], a["id"]))
        left = [a for a in w.get(path + "/artifacts")["items"] if a["status"] == "completed"]
        assert len(made) == 6 and newest["id"] in [a["id"] for a in left]
        assert w.get(f"/artifacts/{newest['id']}/download")["files"]
