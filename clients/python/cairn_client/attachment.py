"""The attachment: the server's own weight memory, mapped into this process, and commits to it."""
import hashlib
import mmap
import os
import threading

import numpy as np

from . import bf16
from .commit import DTYPES, Commit
from .errors import CairnError, StateError, Unreachable


class Attachment:
    """Made by Client.attach. Reading is allowed at any time; writing only inside commit().

    A thread of its own keeps the attachment alive; what that thread met last stands in .heartbeat_error. The other
    methods are for one thread at a time.
    """

    def __init__(self, client, name):
        self.client, self.heartbeat_error, self.quiesced, self.open_commit = client, None, False, None
        self.info = client.data("POST", "/api/weights/attach", {"client": name, "pid": os.getpid()})
        self.id = self.info["attachment_id"]
        self.tensors = {t["name"]: t for t in self.info["tensors"]}
        self._over = threading.Event()
        try:
            self.arena = self._map()
        except (OSError, ValueError) as e:  # ValueError: not the whole arena is there
            self.call("detach")
            raise Unreachable("NO_MAPPING", f"the weights at {self.info['arena']['path']} cannot be mapped: {e}; "
                              "attach from the server's machine, as the server's user") from e
        self._beat = threading.Thread(target=self._heartbeat, name="cairn-heartbeat", daemon=True)
        self._beat.start()

    def _map(self):
        with open(self.info["arena"]["path"], "r+b") as f:
            return mmap.mmap(f.fileno(), self.info["arena"]["bytes"])

    def call(self, route, body=None):
        """POST /api/weights/<route> as the holder of this attachment; the data."""
        return self.client.data("POST", f"/api/weights/{route}", body or {}, self.id)

    def _heartbeat(self):
        while not self._over.wait(self.info["heartbeat_interval_s"]):
            try:
                self.call("heartbeat")
                self.heartbeat_error = None
            except CairnError as e:
                self.heartbeat_error = e

    # ---- the tensors ----

    def view(self, name, writable=False):
        """The tensor as the server's memory has it: BF16 as uint16 bits, F16 as float16. Read-only, unless a commit
        hands it out."""
        t = self.tensors[name]
        array = np.frombuffer(self.arena, DTYPES[t["dtype"]], t["nbytes"] // 2, t["offset"]).reshape(t["shape"])
        array.flags.writeable = writable
        return array

    def get(self, name):
        """A copy of the tensor's values as float32."""
        raw = self.view(name)
        return bf16.to_float32(raw) if self.tensors[name]["dtype"] == "BF16" else raw.astype(np.float32)

    def encode(self, name, values):
        """Float values as the tensor's memory has them (rounded to nearest even). Done before a commit, it keeps the
        rounding out of the time that serving waits."""
        t = self.tensors[name]
        if np.shape(values) != tuple(t["shape"]):
            raise ValueError(f"{name} has the shape {tuple(t['shape'])}, the values have {np.shape(values)}")
        return bf16.from_float32(values) if t["dtype"] == "BF16" else np.asarray(values, np.float32).astype(np.float16)

    def digest(self):
        """SHA-256 over all tensors in the order of their names, as this process sees them."""
        h = hashlib.sha256()
        for name in sorted(self.tensors):
            h.update(self.view(name))
        return h.hexdigest()

    # ---- commits ----

    def commit(self, undo=False):
        """`with weights.commit() as step:` stops serving between two steps; `step.put(name, values)` or
        `step.view(name)` write; the end makes the values count and serving goes on. See Commit for what an exception
        inside leaves; undo=True takes back what was written."""
        return Commit(self, undo)

    def quiesce(self):
        """Holds new requests after the running ones have ended, for at most info["max_hold_s"]."""
        answer = self.call("quiesce")
        self.quiesced = True
        return answer

    def resume(self):
        """Serving goes on. Returns None when the server's hold timer came first."""
        self.quiesced = False
        try:
            return self.call("resume")
        except StateError as e:
            if e.code != "NOT_QUIESCED":
                raise
            return None

    # ---- checkpoints ----

    def save(self, run_id, step, *, parent="resident", domain="unspecified", signal_source="corpus",
             optimizer=None, plan=False, **fields):
        """Writes the weights as a checkpoint while serving goes on. parent="resident" names the checkpoint the weights
        came from (none for a catalogue model). plan=True runs every check and writes nothing."""
        if parent == "resident":
            model = self.client.status()["model"]
            parent = model["name"] if model and model["origin"] == "checkpoint" else None
        manifest = {"run_id": run_id, "step": step, "domain": domain, "signal_source": signal_source, "parent": parent,
                    "optimizer": optimizer or {"name": "unspecified", "state": "fresh"}, **fields}
        return self.call("plan/save" if plan else "save", {"manifest": manifest})

    def load(self, name=None, *, path=None, plan=False, **fields):
        """Loads a checkpoint into the mapped memory: the views show its values afterwards. Where the attachment has
        ended (a server that started anew has none) nothing is loaded."""
        self.call("heartbeat")
        return self.client.load(name, path=path, plan=plan, attachment=self.id, **fields)

    # ---- adapters ----

    def apply_adapter(self, name, scale=1.0, **more):
        """Beside the mapped weights, which stay as they are; a save never contains it."""
        return self.client.apply_adapter(name, scale, attachment=self.id, **more)

    def remove_adapter(self, **more):
        return self.client.remove_adapter(attachment=self.id, **more)

    # ---- the end ----

    def detach(self):
        """Gives the weights back; the server keeps their values. Views that are still held stay readable, but no longer
        show what is served."""
        if self._over.is_set():
            return None
        answer = self.call("detach")
        self._over.set()
        self._beat.join()
        return answer

    def __enter__(self):
        return self

    def __exit__(self, kind, exception, trace):
        try:
            self.detach()
        except CairnError as e:
            self._over.set()
            if exception is None:
                raise
            exception.add_note(f"cairn: detaching failed too: {e}")
