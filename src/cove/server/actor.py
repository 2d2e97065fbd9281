"""Know for whom a request is answered: the key, the client program and the trace, which journals keep."""

from collections.abc import Coroutine

from cove.core.journal import SERVER_KEY, Actor, parse_client, parse_trace
from cove.http import Answer, Handler, Request
from cove.runtime.journal import ACTOR


def actor_of(request: Request) -> Actor:
    """Return who asks, of a request that was let in."""
    headers = request.headers
    client = parse_client(headers.get(b"user-agent", b"").decode("latin-1"))
    trace = headers.get(b"traceparent")
    return Actor(SERVER_KEY, client, None if trace is None else parse_trace(trace.decode("latin-1")))


def with_actor(handler: Handler) -> Handler:
    """Return the handler, which knows who asks: the task that answers is made right after this call."""

    def handle(request: Request) -> Answer | Coroutine[object, object, Answer]:
        ACTOR.set(actor_of(request))
        return handler(request)

    return handle
