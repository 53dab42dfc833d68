"""The server from outside: models, status, lineage, load, and the way to attach."""
import os
import time

from .attachment import Attachment
from .errors import ModelError, Unreachable
from .lease import Lease
from .transport import Transport


class Client:
    """A Cairn server. `url` and `token` default to CAIRN_URL and CAIRN_TOKEN. Keeps no connection open; may be shared
    by threads. Methods return the `data` of the server's answers, as docs/api/ describes them."""

    def __init__(self, url=None, token=None, timeout_s=600.0):
        self.transport = Transport(url, token, timeout_s)

    def call(self, method, path, body=None, attachment=None, lease=None):
        """Any route by hand: the whole JSON answer. `lease` is a Lease of this client."""
        return self.transport.call(method, path, body, attachment, lease and lease.id)

    def data(self, method, path, body=None, attachment=None, lease=None):
        """A management route (/api/...): what stands under `data`."""
        answer = self.call(method, path, body, attachment, lease)
        if not isinstance(answer, dict) or "data" not in answer:
            raise Unreachable("NO_DATA", f"{method} {path}: the answer has no data; is this a Cairn server?")
        return answer["data"]

    # ---- models ----

    def models(self):
        """The rows of the catalogue."""
        return self.data("GET", "/api/models")

    def model(self, which):
        """One row, by id or by name."""
        if isinstance(which, int):
            return self.data("GET", f"/api/models/{which}")
        for row in self.models():
            if row["name"] == which:
                return row
        raise ModelError("MODEL_NOT_FOUND", f"no model is called {which!r}", 404, {"name": which})

    def register(self, directory, name=None):
        """Registers a local model directory; its row."""
        body = {"source": "local", "local_path": os.path.abspath(directory)}
        return self.data("POST", "/api/models", body if name is None else {**body, "custom_name": name})

    def load_model(self, which, poll_s=0.02, lease=None):
        """Loads a row of the catalogue and waits until it answers; the row."""
        row = self.model(which)
        self.data("POST", f"/api/models/{row['id']}/load", {}, lease=lease)
        while True:
            row = self.model(row["id"])
            if row["status"] == "loaded":
                return row
            if row["status"] != "loading":
                why = row.get("error_message") or f"its status is {row['status']}"
                raise ModelError("MODEL_LOAD_FAILED", f"{row['name']}: {why}", 500, row)
            time.sleep(poll_s)

    def unload_model(self, which, lease=None):
        return self.data("POST", f"/api/models/{self.model(which)['id']}/unload", {}, lease=lease)

    def lease(self, which, holder, reason, ttl_s=None):
        """The resident model stays: `with client.lease("name", "eval", "nightly run"):`. See Lease."""
        body = {"holder": holder, "reason": reason, **({} if ttl_s is None else {"ttl_seconds": ttl_s})}
        return Lease(self, self.model(which)["id"], body)

    # ---- adapters ----

    def adapters(self):
        """The adapters that the server has, what fits the resident, and the one that is applied."""
        return self.data("GET", "/api/adapters")

    def apply_adapter(self, name, scale=1.0, *, attachment=None, lease=None):
        """Answers come with the adapter from now on, in place of another one that was applied."""
        return self.data("POST", "/api/adapters/apply", {"name": name, "scale": scale}, attachment, lease)

    def remove_adapter(self, *, attachment=None, lease=None):
        """The name of the adapter that was applied, or None."""
        return self.data("POST", "/api/adapters/remove", {}, attachment, lease)["removed"]

    # ---- weights ----

    def status(self):
        """Which weights answer, in which state, and who is attached."""
        return self.data("GET", "/api/weights/status")

    def lineage(self):
        """From the resident's checkpoint back to its base; data["break"] says where the chain ends early, if it does."""
        return self.data("GET", "/api/weights/lineage")

    def load(self, name=None, *, path=None, model_id=None, plan=False, attachment=None, lease=None, **fields):
        """Loads a verified checkpoint by name or path, or a row's own files by model_id. plan=True runs every check,
        hash included, changes nothing and tells what would happen."""
        body = {k: v for k, v in {"name": name, "path": path, "model_id": model_id, **fields}.items() if v is not None}
        return self.data("POST", "/api/weights/plan/load" if plan else "/api/weights/load", body, attachment, lease)

    def clear_stale(self):
        """For an operator: ends an attachment whose process is gone."""
        return self.data("POST", "/api/weights/detach", {"force": True})

    def attach(self, name="cairn_client"):
        """Maps the resident weights. Use it as `with client.attach() as weights:`; the end detaches."""
        return Attachment(self, name)
