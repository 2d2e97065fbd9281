"""Know for whom a request is answered: the key, the client program and the trace, which journals keep."""

from collections.abc import Coroutine
from typing import Final

from cove.core.journal import SERVER_KEY, Actor, parse_client, parse_trace
from cove.http import Answer, Handler, Request
from cove.runtime.journal import ACTOR

KEY_HEADER: Final = b"cove-key"


def actor_of(request: Request) -> Actor:
    """Return who asks, of a request that was let in."""
    headers = request.headers
    key = headers.get(KEY_HEADER)
    client = parse_client(headers.get(b"user-agent", b"").decode("latin-1"))
    trace = headers.get(b"traceparent")
    return Actor(
        SERVER_KEY if key is None else key.decode("latin-1"),
        client,
        None if trace is None else parse_trace(trace.decode("latin-1")),
    )


def name_key(request: Request, name: str | None) -> None:
    """Tell the processes that a request passes the name of its key, and believe no client that tells one."""
    if KEY_HEADER in request.headers:
        del request.headers[KEY_HEADER]
        request.raw_headers[:] = [header for header in request.raw_headers if header[0].lower() != KEY_HEADER]
    if name is not None:
        request.headers[KEY_HEADER] = name.encode()
        request.raw_headers.append((KEY_HEADER, name.encode()))


def with_actor(handler: Handler) -> Handler:
    """Return the handler, which knows who asks: the task that answers is made right after this call."""

    def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
        ACTOR.set(actor_of(request))
        return handler(request)

    return handle
