"""A lease: the promise that the resident model stays while somebody works with it."""
from .errors import CairnError


class Lease:
    """Made by Client.lease. While it lives nobody else's load, unload or on-demand load replaces the model; requests are
    answered as ever. Pass it as `lease=` to the calls that may. It ends with the block, by release(), or when its time
    is over; info is what the server said last."""

    def __init__(self, client, model_id, body):
        self.client, self.where = client, f"/api/models/{model_id}/lease"
        self.info = client.data("POST", self.where, body)
        self.id = self.info.pop("lease_id")  # a secret: it lifts the lease

    def renew(self, ttl_s=None):
        """From now on for another ttl_s seconds (the server's default)."""
        self.info = self.client.data("POST", self.where + "/renew", {} if ttl_s is None else {"ttl_seconds": ttl_s},
                                     lease=self)
        return self.info

    def release(self):
        """The lease as it ended; it is of no use afterwards."""
        return self.client.data("DELETE", self.where, lease=self)

    def __enter__(self):
        return self

    def __exit__(self, kind, exception, trace):
        try:
            self.release()
        except CairnError as e:
            if exception is None and e.code not in ("LEASE_EXPIRED", "LEASE_NOT_FOUND"):
                raise
