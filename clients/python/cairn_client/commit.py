"""One change of the mapped weights, between two steps of the server."""
import numpy as np

from .errors import CairnError

DTYPES = {"BF16": np.dtype("<u2"), "F16": np.dtype("<f2")}  # BF16 as its bits: see bf16.py


class Commit:
    """Made by Attachment.commit; a context manager.

    Begin: running requests end, new ones are held, the state becomes `writing`. A call that fails there lets serving go
    on and raises. End: the state is `clean` again, with one more commit, and serving goes on.

    An exception inside passes through with a note that says where it leaves the weights:
    - undo=True: every tensor taken through put() or view() gets its old bytes back, the commit ends, serving goes on.
    - undo=False: nobody can tell what is half written, so the commit stays open and nothing is served. finish()
      accepts the values as they are; otherwise the server's watchdog makes the weights torn at .watchdog_expires_at,
      and a load of a checkpoint is the way back.

    Afterwards .result is the server's answer (commits, steps_since_load, commit_ms, overran).
    """

    def __init__(self, weights, undo):
        self.weights, self.result, self.watchdog_expires_at = weights, None, None
        self._before = {} if undo else None
        self._held_before = weights.quiesced

    # ---- writing ----

    def view(self, name):
        """The tensor's own memory, to write into: BF16 as uint16 bits, F16 as float16. Not to be used after the end."""
        array, owner = self.weights.view(name, writable=True), self.weights.tensors[name]["shared_with"] or name
        if self._before is not None and owner not in self._before:
            self._before[owner] = array.copy()
        return array

    def put(self, name, values):
        """Writes a whole tensor from float values, or from what Attachment.encode made of them."""
        t = self.weights.tensors[name]
        ready = isinstance(values, np.ndarray) and values.dtype == DTYPES[t["dtype"]] and list(values.shape) == t["shape"]
        encoded = values if ready else self.weights.encode(name, values)
        self.view(name)[...] = encoded

    # ---- begin and end ----

    def __enter__(self):
        if not self._held_before:
            self.weights.quiesce()
        try:
            begun = self.weights.call("commit-begin")
        except BaseException:
            if not self._held_before:
                self.weights.resume()
            raise
        self.watchdog_expires_at = begun["watchdog_expires_at"]
        self.weights.open_commit = self
        return self

    def finish(self):
        """Makes the values count, and lets serving go on unless the caller had quiesced before."""
        self.result = self.weights.call("commit-end")
        self.weights.open_commit = None
        if not self._held_before:
            self.weights.resume()
        return self.result

    def __exit__(self, kind, exception, trace):
        if exception is None:
            self.finish()
            return
        if self._before is None:
            exception.add_note("cairn: the commit is still open and the weights may be half written; nothing is served. "
                               f"finish() accepts them; at {self.watchdog_expires_at} they become torn, then load a "
                               "checkpoint.")
            return
        self._take_back(exception)

    def _take_back(self, exception):
        for name, old in self._before.items():
            self.weights.view(name, writable=True)[...] = old
        try:
            self.finish()
            exception.add_note("cairn: the weights have the values they had before this commit; serving goes on.")
        except CairnError as e:
            exception.add_note(f"cairn: the old values are back, but the commit could not be ended: {e}")
