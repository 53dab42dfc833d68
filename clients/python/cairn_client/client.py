"""The server from outside: models, status, lineage, load, and the way to attach."""
import os
import time

from .attachment import Attachment
from .errors import ModelError, Unreachable
from .transport import Transport


class Client:
    """A Cairn server. `url` and `token` default to CAIRN_URL and CAIRN_TOKEN. Keeps no connection open; may be shared
    by threads. Methods return the `data` of the server's answers, as docs/api/ describes them."""

    def __init__(self, url=None, token=None, timeout_s=600.0):
        self.transport = Transport(url, token, timeout_s)

    def call(self, method, path, body=None, attachment=None):
        """Any route by hand: the whole JSON answer."""
        return self.transport.call(method, path, body, attachment)

    def data(self, method, path, body=None, attachment=None):
        """A management route (/api/...): what stands under `data`."""
        answer = self.call(method, path, body, attachment)
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

    def load_model(self, which, poll_s=0.02):
        """Loads a row of the catalogue and waits until it answers; the row."""
        row = self.model(which)
        self.data("POST", f"/api/models/{row['id']}/load", {})
        while True:
            row = self.model(row["id"])
            if row["status"] == "loaded":
                return row
            if row["status"] != "loading":
                why = row.get("error_message") or f"its status is {row['status']}"
                raise ModelError("MODEL_LOAD_FAILED", f"{row['name']}: {why}", 500, row)
            time.sleep(poll_s)

    def unload_model(self, which):
        return self.data("POST", f"/api/models/{self.model(which)['id']}/unload", {})

    # ---- weights ----

    def status(self):
        """Which weights answer, in which state, and who is attached."""
        return self.data("GET", "/api/weights/status")

    def lineage(self):
        """From the resident's checkpoint back to its base; data["break"] says where the chain ends early, if it does."""
        return self.data("GET", "/api/weights/lineage")

    def load(self, name=None, *, path=None, model_id=None, plan=False, attachment=None, **fields):
        """Loads a verified checkpoint by name or path, or a row's own files by model_id. plan=True runs every check,
        hash included, changes nothing and tells what would happen."""
        body = {k: v for k, v in {"name": name, "path": path, "model_id": model_id, **fields}.items() if v is not None}
        return self.data("POST", "/api/weights/plan/load" if plan else "/api/weights/load", body, attachment)

    def clear_stale(self):
        """For an operator: ends an attachment whose process is gone."""
        return self.data("POST", "/api/weights/detach", {"force": True})

    def attach(self, name="cairn_client"):
        """Maps the resident weights. Use it as `with client.attach() as weights:`; the end detaches."""
        return Attachment(self, name)
