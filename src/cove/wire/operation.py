"""One operation: its route, the method that answers it, its request and its reply."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from cove.wire.replies import NOTHING, Reply
from cove.wire.requests import Nothing, Request
from cove.wire.target import Target

SANDBOXES: Final = "/v1/sandboxes"
SNAPSHOTS: Final = "/v1/snapshots"
KEYS: Final = "/v1/keys"
IMAGES: Final = "/v1/images"
ROOT: Final = f"{SANDBOXES}/{{sandbox}}"
_OF_SESSION: Final = f"{ROOT}/sessions/{{session}}"

Q = TypeVar("Q", bound=Request, covariant=True)
V = TypeVar("V", covariant=True)


_OF_SERVER: Final = (Target.SERVER, Target.VOLUME, Target.SNAPSHOT, Target.IMAGE)


class Form(Enum):
    """The content that travels besides the request."""

    VALUE = auto()  # JSON comes back
    EVENTS = auto()  # a stream of events comes back; where the request has `since`, each has a cursor
    CONTENT = auto()  # bytes come back
    UPLOAD = auto()  # bytes go there, and are taken whole
    STREAM = auto()  # bytes go there, and are taken as they come
    WORK = auto()  # events come back, the last of which has the result; that alone as JSON for who accepts no events
    STREAM_WORK = auto()  # bytes go there, and are taken as they come; what comes back is as that of WORK
    PAGE = auto()  # a document comes back, of the media type that its reply says
    WEBSOCKET = auto()  # messages both ways
    TCP = auto()  # bytes both ways


class By(Enum):
    """The process that answers."""

    RUNTIME = auto()  # that of the sandbox, which is started if it is stopped
    GATEWAY = auto()  # any worker of the server
    EITHER = auto()  # whoever is asked: a worker, or a runtime at its own socket
    RUNNING = auto()  # the runtime where one runs, otherwise a worker


class Caller(Enum):
    """The right that a call needs."""

    ANYONE = auto()
    ADMIN = auto()
    KEY_HOLDER = auto()
    READER = auto()  # who has the key, also as `?token=`: a browser sends no headers that a link could name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation(Generic[Q, V]):
    """One row of the table, generic in its request and in the value of the method, or in one event of it.

    What answers NOTHING answers 204. A `repeatable` one is idempotent: it may be retried. What a call that `makes`
    something has made is removed again when its caller is cancelled.
    """

    name: str
    verb: str
    path: str
    target: Target
    method: str
    summary: str
    request: type[Q]
    answer: Reply[V]
    form: Form
    repeatable: bool
    makes: bool
    by: By
    caller: Caller
    success: int

    @property
    def reply(self) -> object:
        """The type of the answer on the wire; None for one without content."""
        return None if self.answer is NOTHING else self.answer.type

    @property
    def status(self) -> int:
        """The HTTP status of an answer that is no error."""
        return 204 if self.answer is NOTHING else self.success

    @property
    def has_request(self) -> bool:
        """Return whether it takes arguments besides those in its path."""
        return self.request is not Nothing

    @property
    def takes_content(self) -> bool:
        """Return whether the body is content."""
        return self.form in (Form.UPLOAD, Form.STREAM, Form.STREAM_WORK)

    @property
    def has_query(self) -> bool:
        """Return whether the request's fields stand in the query."""
        return self.verb in ("GET", "DELETE") or self.takes_content

    @property
    def has_cursor(self) -> bool:
        """Return whether a stream of events can be resumed after the last one that was seen."""
        return self.form is Form.EVENTS and "since" in self.request.__struct_fields__

    @property
    def paths(self) -> tuple[str, ...]:
        """All full paths: operations on files exist below a session too, where relative paths start at its cwd."""
        if self.target in _OF_SERVER:
            return (self.path,)
        if self.target is Target.FILES:
            return ROOT + self.path, _OF_SESSION + self.path
        return (ROOT + self.path,)


AnyOperation = Operation[Request, object]


def parameters_of(path: str) -> list[str]:
    """The names in a path, in order."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def row(
    name: str,
    route: str,
    target: Target,
    method: str,
    summary: str,
    request: type[Q],
    answer: Reply[V],
    form: Form = Form.VALUE,
    *,
    repeatable: bool = False,
    makes: bool = False,
    by: By = By.RUNTIME,
    caller: Caller = Caller.KEY_HOLDER,
    success: int = 200,
) -> Operation[Q, V]:
    """Make an operation; what is read by GET is repeatable."""
    verb, path = route.split(" ")
    return Operation(
        name=name,
        verb=verb,
        path=path,
        target=target,
        method=method,
        summary=summary,
        request=request,
        answer=answer,
        form=form,
        repeatable=repeatable or verb == "GET",
        makes=makes,
        by=by,
        caller=caller,
        success=success,
    )
