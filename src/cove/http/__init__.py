"""An HTTP/1.1 and WebSocket server and relay on asyncio; knows nothing of sandboxes."""

from cove.http.errors import BadRequest, BodyTooLarge, HttpError, ServerStopping
from cove.http.parser import HttpLimits
from cove.http.request import Request
from cove.http.response import Answer, Body, Exchange, Handler, Headers, Ping, Relay, Response, Upgrade
from cove.http.server import HttpServer, Observer
from cove.http.stream import Stream

__all__ = [
    "HttpServer",
    "HttpLimits",
    "Observer",
    "Handler",
    "Headers",
    "Request",
    "Answer",
    "Response",
    "Body",
    "Ping",
    "Upgrade",
    "Stream",
    "Relay",
    "Exchange",
    "HttpError",
    "BadRequest",
    "BodyTooLarge",
    "ServerStopping",
]
