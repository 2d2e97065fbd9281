"""Errors on the wire: HTTP status, code, message and the facts."""

from collections.abc import Mapping

import msgspec

from cove.errors import CoveError, Internal, ValidationFailed
from cove.wire.coding import decode_json, encode_json

STATUS: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "VALIDATION_FAILED",
            "UNSUPPORTED_LANGUAGE",
            "USER_UNAVAILABLE",
            "IMAGE_INVALID",
            "BUILD_FAILED",
            "BACKUP_EXPIRED",
        ),
        400,
    ),
    **dict.fromkeys(("UNAUTHORIZED", "GIT_AUTH_FAILED"), 401),
    **dict.fromkeys(("PERMISSION_DENIED", "NETWORK_DENIED"), 403),
    **dict.fromkeys(
        (
            *("SANDBOX_NOT_FOUND", "SESSION_NOT_FOUND", "PROCESS_NOT_FOUND", "TERMINAL_NOT_FOUND", "CONTEXT_NOT_FOUND"),
            *("FILE_NOT_FOUND", "PORT_NOT_EXPOSED", "GIT_NOT_FOUND", "GIT_BRANCH_NOT_FOUND", "NOT_FOUND"),
            *(
                "SNAPSHOT_NOT_FOUND",
                "IMAGE_NOT_FOUND",
                "VOLUME_NOT_FOUND",
                "API_KEY_NOT_FOUND",
                "MOUNT_NOT_FOUND",
                "BACKUP_NOT_FOUND",
            ),
        ),
        404,
    ),
    "METHOD_NOT_ALLOWED": 405,
    **dict.fromkeys(("PROCESS_READY_TIMEOUT", "PROCESS_WAIT_TIMEOUT", "GIT_TIMEOUT"), 408),
    **dict.fromkeys(
        (
            *("SANDBOX_ALREADY_EXISTS", "SESSION_ALREADY_EXISTS", "PROCESS_ALREADY_EXISTS", "CONTEXT_ALREADY_EXISTS"),
            *("FILE_EXISTS", "IS_DIRECTORY", "NOT_DIRECTORY", "PORT_ALREADY_EXPOSED", "PORT_IN_USE"),
            *(
                "SNAPSHOT_ALREADY_EXISTS",
                "IMAGE_ALREADY_EXISTS",
                "VOLUME_ALREADY_EXISTS",
                "API_KEY_ALREADY_EXISTS",
                "MOUNT_EXISTS",
            ),
            *("SNAPSHOT_IN_USE", "IMAGE_IN_USE", "VOLUME_IN_USE"),
            *("SANDBOX_STOPPED", "SANDBOX_PAUSED", "TRANSACTION_OPEN", "FORK_REFUSED"),
            *("GIT_BRANCH_EXISTS", "GIT_CONFLICT", "GIT_REJECTED", "GIT_NOTHING_TO_COMMIT"),
        ),
        409,
    ),
    **dict.fromkeys(("SESSION_TERMINATED", "CONTEXT_CRASHED", "SANDBOX_DESTROYED"), 410),
    "FILE_TOO_LARGE": 413,
    "LIMIT_EXCEEDED": 429,
    **dict.fromkeys(
        ("SPAWN_FAILED", "PROCESS_EXITED_BEFORE_READY", "INTERNAL", "GIT_FAILED", "COMMAND_FAILED"),
        500,
    ),
    **dict.fromkeys(("SERVICE_NOT_RESPONDING", "GIT_NETWORK_ERROR", "CONNECTION_LOST", "NODE_LOST"), 502),
    **dict.fromkeys(
        (
            *("INTERPRETER_NOT_READY", "SANDBOX_UNAVAILABLE", "SECRET_UNAVAILABLE"),
            *("NODE_UNAVAILABLE", "NO_CAPACITY", "PLACEMENT_UNAVAILABLE"),
        ),
        503,
    ),
    "NO_SPACE": 507,
}


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error: str
    code: str
    details: dict[str, object] = {}


def _classes(kind: type[CoveError]) -> dict[str, type[CoveError]]:
    found = {kind.code: kind} if "code" in vars(kind) else {}
    for below in kind.__subclasses__():
        found.update(_classes(below))
    return found


_BY_CODE: Mapping[str, type[CoveError]] = {**_classes(CoveError), CoveError.code: Internal}


def status_of(error: CoveError) -> int:
    """The HTTP status of an error."""
    return STATUS.get(error.code, 500)


def encode_error(error: CoveError) -> bytes:
    """The body of a failed reply."""
    return encode_json(body_of(error))


def body_of(error: CoveError) -> ErrorBody:
    """The error as it travels."""
    return ErrorBody(error.message, error.code, error.details)


def decode_error(data: bytes, status: int) -> CoveError:
    """The error that a server sent, as the class it was there; whatever else comes is an Internal."""
    try:
        body = decode_json(data, ErrorBody)
    except ValidationFailed:
        return Internal(f"the server answered {status} with something that is no Cove error: {data[:200]!r}")
    return make_error(body)


def make_error(body: ErrorBody) -> CoveError:
    """The error as the class that has its code."""
    kind = _BY_CODE.get(body.code, Internal)
    try:
        return kind(body.error, **body.details)
    except TypeError:  # details of another version
        return Internal(f"{body.code}: {body.error}", **body.details)
