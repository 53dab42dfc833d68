"""What a Cairn server refuses, as exceptions: one class for each family of codes.

Every error has .code (the server's word, such as "NOT_ATTACHED"), .status (of HTTP; 0 when no answer came), .message
(one sentence) and .details (a dict). Catch a family, or compare .code.
"""


class CairnError(Exception):
    """Anything the server refused, or that kept the client from reaching it."""

    def __init__(self, code, message, status=0, details=None):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status, self.details = code, message, status, details or {}


class Unreachable(CairnError):
    """No server answered, or something else than Cairn did."""


class AccessError(CairnError):
    """The token is missing, unknown, or of a role that may not do this."""


class RequestError(CairnError):
    """The request itself is wrong: a field, a path, a name."""


class ManifestError(RequestError):
    """The caller's side of a manifest is wrong; details.errors lists the faults by path."""


class AttachmentError(CairnError):
    """Nothing is attached, somebody else is, or this attachment has ended."""


class StateError(CairnError):
    """The weights are not in the state that the call needs: an open commit, torn, held, unsaved."""


class BusyError(CairnError):
    """Something else is going on; the same call may succeed later."""


class ModelError(CairnError):
    """The model is not there, not loaded, or cannot be loaded."""


class CheckpointError(CairnError):
    """The checkpoint exists already, is missing, is damaged, or could not be written."""


class SpaceError(CairnError):
    """There is too little disk or memory."""


class ServerError(CairnError):
    """The server failed."""


FAMILIES = {
    AccessError: "UNAUTHORIZED FORBIDDEN WEIGHTS_DISABLED",
    ManifestError: "INVALID_MANIFEST MANIFEST_FIELD_NOT_CALLERS INVALID_RUN_ID",
    RequestError: "VALIDATION_ERROR PAYLOAD_TOO_LARGE INVALID_CHECKPOINT_PATH INVALID_LOCAL_PATH REPO_NOT_FOUND GPU_NOT_FOUND "
                  "ADAPTER_NOT_FOUND ADAPTER_INVALID ADAPTER_INCOMPATIBLE INVALID_LEASE_REQUEST",
    AttachmentError: "NOT_ATTACHED NOT_ATTACHMENT_HOLDER ALREADY_ATTACHED NOT_ATTACHABLE ATTACHMENT_NOT_STALE already_attached",
    StateError: "WEIGHTS_NOT_CLEAN ALREADY_QUIESCED NOT_QUIESCED COMMIT_NOT_OPEN LEASE_NOT_FOUND LEASE_EXPIRED weights_torn "
                "weights_unsaved",
    BusyError: "MODEL_BUSY PAUSE_IN_PROGRESS BARRIER_UNAVAILABLE MODEL_LEASED MODEL_LOCKED model_busy model_loading queue_full",
    ModelError: "MODEL_NOT_LOADED MODEL_NOT_FOUND MODEL_ALREADY_EXISTS MODEL_ALREADY_LOADED MODEL_NOT_RESIDENT MODEL_LOAD_FAILED ENGINE_UNSUPPORTED "
                "UNSUPPORTED_QUANTIZATION LOCAL_PATH_REGISTERED model_not_found model_not_loaded model_not_resident "
                "model_load_failed unsupported_quantization",
    CheckpointError: "CHECKPOINT_EXISTS CHECKPOINT_AMBIGUOUS CHECKPOINT_NOT_FOUND CHECKPOINT_NOT_LOADABLE "
                     "CHECKPOINT_HASH_MISMATCH CHECKPOINT_WRITE_FAILED WEIGHTS_LOAD_FAILED",
    SpaceError: "INSUFFICIENT_STORAGE INSUFFICIENT_MEMORY insufficient_memory",
}
BY_CODE = {code: family for family, codes in FAMILIES.items() for code in codes.split()}
BY_STATUS = {401: AccessError, 403: AccessError, 409: StateError, 503: BusyError, 507: SpaceError}


def family_of(code, status):
    """The class for a code; one this client does not know is judged by its status."""
    return BY_CODE.get(code) or BY_STATUS.get(status) or (ServerError if status >= 500 else RequestError)


def error_of(status, body):
    """The exception for an answer of status 400 or more; `body` is its JSON, or None."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {"message": body.get("detail") if isinstance(body, dict) else None}
    code = error.get("code") or f"HTTP_{status}"
    message = error.get("message") or f"the server answered with status {status}"
    return family_of(code, status)(code, message, status, error.get("details"))
