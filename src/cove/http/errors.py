"""HTTP errors with their status: a client's fault, or a server that cannot answer."""


class HttpError(Exception):
    """Answered with this status, and the connection is closed."""

    status = 400


class BadRequest(HttpError):
    """Not HTTP, or not the HTTP that is safe to understand."""


class BodyTooLarge(HttpError):
    """The body is larger than this request may have."""

    status = 413


class HeadTooLarge(HttpError):
    """The head is larger than any request needs."""

    status = 431


class RequestTimeout(HttpError):
    """The client stopped sending in the middle of a request."""

    status = 408


class HandlerFailed(HttpError):
    """The handler raised what nobody can describe to a client."""

    status = 500


class TooManyConnections(HttpError):
    """There is no room for this connection."""

    status = 503


class ServerStopping(HttpError):
    """The server stops and reads no further request on this connection: one on its way may be repeated (RFC 9110)."""

    status = 408
