"""HTTP/1.1 and WebSocket on asyncio, for handlers of any kind: knows nothing of sandboxes."""

from cove.http.message import (
    Answer,
    BadRequest,
    BodyTooLarge,
    Exchange,
    Handler,
    Headers,
    HttpError,
    HttpLimits,
    Relay,
    Request,
    Response,
    Upgrade,
    error_response,
)
from cove.http.server import HttpServer
from cove.http.stream import Stream

__all__ = [
    "HttpServer",
    "HttpLimits",
    "Handler",
    "Headers",
    "Request",
    "Answer",
    "Response",
    "Upgrade",
    "Stream",
    "Relay",
    "Exchange",
    "HttpError",
    "BadRequest",
    "BodyTooLarge",
    "error_response",
]
