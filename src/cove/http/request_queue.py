"""Requests that were read and wait for their turn (pipelining), and why nothing after them is understood."""

from collections import deque

from cove.http.endpoint import Endpoint
from cove.http.errors import HttpError
from cove.http.parser import HttpLimits, RequestParser
from cove.http.request import BodySource, Request

_MOST_WAITING = 4


class RequestQueue:
    """Parses what a client sends. Reading stops while more than a few requests wait.

    `rejection` is the error that ended parsing: requests that came before it are still answered.
    """

    __slots__ = ("_endpoint", "_waiting", "parser", "rejection")

    def __init__(self, endpoint: Endpoint, source: BodySource, limits: HttpLimits) -> None:
        self._endpoint = endpoint
        self._waiting: deque[Request] = deque()
        self.parser = RequestParser(source, limits, self._add)
        self.rejection: HttpError | None = None

    def __bool__(self) -> bool:
        """Return whether a request waits."""
        return bool(self._waiting)

    def feed(self, data: bytes) -> None:
        """Take what the client has sent."""
        try:
            self.parser.feed(data)
        except HttpError as error:
            self._refuse(error)

    def release(self) -> None:
        """Parse on: an upgrade was asked for, and the connection stays HTTP."""
        try:
            self.parser.release()
        except HttpError as error:
            self._refuse(error)

    def pop(self) -> Request:
        """Take the request that waits longest."""
        return self._waiting.popleft()

    def clear(self) -> None:
        """Forget those that wait: nobody wants their answers."""
        self._waiting.clear()

    def _add(self, request: Request) -> None:
        self._waiting.append(request)
        if len(self._waiting) > _MOST_WAITING:
            self._endpoint.pause_reading()

    def _refuse(self, error: HttpError) -> None:
        """Nothing that follows can be understood."""
        self.rejection = error
        if self.parser.incoming is not None:
            self.parser.incoming.fail(error)
