"""Shared parts of the bridge protocol: requests, paths, errors, limits.

The gateway checks the id and the key, finds or starts the sandbox, and passes the request on; the runtime does the
rest. Clients that others wrote rely on every text and status here.
"""

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qs

import msgspec

from cove.core.file_path import collapse
from cove.errors import CoveError
from cove.http import Headers, HttpError, Response
from cove.wire.bridge_operations import BRIDGE_OPERATIONS, BridgeOperation
from cove.wire.coding import unquote_text

ROOT: Final = "/v1/sandbox"
BELOW: Final = f"{ROOT}/"
WORKSPACE: Final = "/workspace"
_OF_SANDBOX: Final = f"{ROOT}/{{id}}"
MOST_BODY_BYTES: Final = 32 << 20
JSON: Final = ((b"content-type", b"application/json"),)

_MOST_FIELDS: Final = 100
_ID = re.compile(r"[a-z2-7]{1,128}")
_SESSION_ID = re.compile(r"[a-zA-Z0-9._-]{1,128}")


class Refusal(Exception):
    """Answered with a status, a code and a text; headers are added to it."""

    def __init__(self, status: int, code: str, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.headers = headers

    def response(self) -> Response:
        """Make the response."""
        body = msgspec.json.encode({"error": plain_text(self.text), "code": self.code})
        return Response(self.status, (*JSON, *self.headers), body)


def invalid(text: str, status: int = 400) -> Refusal:
    """The request has to change."""
    return Refusal(status, "invalid_request", text)


def not_found() -> Refusal:
    """Make the error for no such route, or not with this method: the protocol does not tell the two apart."""
    return Refusal(404, "not_found", "Not found")


def failed(code: str, text: str) -> Refusal:
    """The request was fine, what it asks for was not possible."""
    return Refusal(502, code, text)


def refusal_of(error: CoveError | HttpError) -> Refusal:
    """Map an error that has no words of its own here."""
    if isinstance(error, CoveError):
        return failed("exec_transport_error", error.message)
    return Refusal(error.status, "payload_too_large" if error.status == 413 else "invalid_request", str(error))


def split(path: str) -> tuple[str, str, str]:
    """A path below ROOT as the sandbox's id, the name of the route, and what stands behind it, all as they came."""
    id, _, rest = path[len(BELOW) :].partition("/")
    name, slash, argument = rest.partition("/")
    return id, name + slash, argument


def check_id(id: str) -> None:
    """Raise for what is no sandbox's id."""
    if not _ID.fullmatch(id):
        raise invalid("Invalid sandbox ID format")


def check_session_id(id: str) -> str:
    """The id, or raise for what is no session's id."""
    if not _SESSION_ID.fullmatch(id) or id == "." or ".." in id:
        raise invalid("Invalid session ID format")
    return id


def find_operation(method: str, path: str) -> tuple[BridgeOperation, str]:
    """The operation of a request, and the argument in its path; only a file's has more than one segment."""
    _, name, argument = split(path) if path.startswith(BELOW) else ("", path, "")
    operation = _ROUTES.get((method, name))
    if operation is None or ("/" in argument and name != "file/"):
        raise not_found()
    return operation, argument


def _names(path: str) -> tuple[str, ...]:
    """A path of the table as `split` names it: one with an argument ends with a slash. A file's may be missing."""
    if not path.startswith(_OF_SANDBOX):
        return (path,)
    name = path.removeprefix(_OF_SANDBOX).removeprefix("/").partition("{")[0]
    return (name, name.rstrip("/")) if name == "file/" else (name,)


_ROUTES: Final = {(row.verb, name): row for row in BRIDGE_OPERATIONS for name in _names(row.path)}


def decode_object(body: bytes, text: str = "Invalid JSON body") -> dict[str, object]:
    """The fields of a JSON object; whatever else is JSON has none."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid(text) from None
    return value if isinstance(value, dict) else {}


def read_query(query: str) -> dict[str, str]:
    """The first value of each field that has one."""
    try:
        fields = parse_qs(query, errors="surrogateescape", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise invalid("The query has too many fields") from None
    return {name: values[0] for name, values in fields.items()}


def plain_text(message: str) -> str:
    """A message that every client can read: what of a name in it is not UTF-8 is a question mark."""
    return message.encode("utf-8", "replace").decode()


def answer_json(value: object) -> Response:
    """Make an ordinary response."""
    return Response(200, JSON, msgspec.json.encode(value))


def timestamp() -> str:
    """Return the current time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def file_path(quoted: str) -> str:
    """Return the file that a URL names; it is decoded completely."""
    if not quoted.strip("/"):
        raise invalid("file path must not be empty")
    path = collapse("/" + unquote_text(quoted))
    if not is_inside(path):
        raise invalid("path must resolve to a location within /workspace", 403)
    if "\0" in path:
        raise invalid("path must not contain a NUL character")
    return path


def working_directory(cwd: object) -> str | None:
    """Return where a command is to run; None for the usual place."""
    if not isinstance(cwd, str) or not cwd:
        return None
    path = collapse(cwd if cwd.startswith("/") else f"{WORKSPACE}/{cwd}")
    if not is_inside(path):
        raise invalid("cwd must resolve to a location within /workspace", 403)
    return path


def is_inside(path: str) -> bool:
    """Return whether a normalised path is the workspace or below it."""
    return path == WORKSPACE or path.startswith(f"{WORKSPACE}/")
