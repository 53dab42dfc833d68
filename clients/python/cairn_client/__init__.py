"""cairn_client: train the weights that a Cairn server serves, from a process of your own.

    from cairn_client import Client

    client = Client()                                   # CAIRN_URL, CAIRN_TOKEN
    with client.attach("my-trainer") as weights:
        values = weights.get("model.norm.weight")       # float32
        with weights.commit() as step:                  # serving waits, and goes on after
            step.put("model.norm.weight", values * 1.01)
        saved = weights.save("my-run", 1)
        weights.load(saved["name"])
    print(client.lineage())

Needs numpy and nothing else.
"""
from .attachment import Attachment
from .client import Client
from .commit import Commit
from .errors import (AccessError, AttachmentError, BusyError, CairnError, CheckpointError, ManifestError, ModelError,
                     RequestError, ServerError, SpaceError, StateError, Unreachable)

__all__ = ["AccessError", "Attachment", "AttachmentError", "BusyError", "CairnError", "CheckpointError", "Client",
           "Commit", "ManifestError", "ModelError", "RequestError", "ServerError", "SpaceError", "StateError",
           "Unreachable"]
__version__ = "0.1.0"
from .lease import Lease
