"""Shared parts of E2B's protocol: ports, paths, error bodies."""

from typing import Final
from urllib.parse import parse_qsl

import msgspec

from cove.core.file_path import collapse
from cove.errors import CoveError, ValidationFailed
from cove.http import Headers, HttpError, Response
from cove.server.error_response import retry_after
from cove.wire.errors import status_of

# What a gateway passes on to a runtime has a path below this one: the id, then a port or CONTROL, then the path.
BELOW: Final = "/v1/e2b/"
CONTROL: Final = "control"
FILES_PORT: Final = 49983
CODE_PORT: Final = 49999
# Clients choose features by the version of the program that upstream has inside.
ENVD_VERSION: Final = "0.6.13"
HOME: Final = "/home/user"
USER: Final = "user"
USER_HEADER: Final = b"cove-user"
JSON: Final = ((b"content-type", b"application/json"),)
TEXT: Final = ((b"content-type", b"text/plain; charset=utf-8"),)
MOST_BODY_BYTES: Final = 64 << 20
_MOST_FIELDS: Final = 100


class Refusal(Exception):
    """Answered with a status and a text: `{"code": 404, "message": "..."}`."""

    def __init__(self, status: int, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers

    @classmethod
    def of(cls, error: CoveError | HttpError) -> "Refusal":
        """Return an error of ours in the words of the protocol; clients repeat what is 502 to 504."""
        if isinstance(error, HttpError):
            return cls(error.status, str(error))
        status = status_of(error)
        status = 500 if 502 <= status <= 504 else status
        return cls(status, error.message, retry_after(status, error.details))

    def response(self) -> Response:
        """Make the response."""
        return Response(self.status, (*JSON, *self.headers), encode({"code": self.status, "message": plain(self.text)}))


def not_running(id: str, reason: str = "The sandbox was not found") -> Response:
    """Answer for what is inside a sandbox that does not run; the words `was not found` tell clients so."""
    return Response(502, JSON, encode({"sandboxId": id, "message": reason, "code": 502}))


def plain(text: str) -> str:
    """Return a text that every client can read: what of a name in it is not UTF-8 is a question mark."""
    return text.encode("utf-8", "replace").decode()


def encode(value: object) -> bytes:
    """Encode an answer."""
    return msgspec.json.encode(value)


def answer(value: object, status: int = 200, headers: Headers = ()) -> Response:
    """Make an ordinary response."""
    return Response(status, (*JSON, *headers), encode(value))


def read_query(query: str) -> dict[str, str]:
    """Return the last value of each field."""
    try:
        fields = parse_qsl(query, keep_blank_values=True, errors="surrogateescape", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refusal(400, "the query has too many fields") from None
    return dict(fields)


def resolve(path: str, home: str = HOME) -> str:
    """Return a path made absolute: relative ones and `~/` are below the home directory."""
    if path in ("", "~"):
        return home
    if path.startswith("~/"):
        return collapse_tail(home, path[2:])
    if path.startswith("~"):
        raise ValidationFailed(f"{path!r}: homes of other users are not looked up: write the whole path")
    return path if path.startswith("/") else collapse_tail(home, path)


def collapse_tail(home: str, path: str) -> str:
    """Return a path below a directory, without `.` and doubled slashes."""
    return collapse(f"{home}/{path}") if ".." not in path.split("/") else f"{home}/{path}"
