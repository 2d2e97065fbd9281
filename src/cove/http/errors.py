"""What a client can do wrong, each with its status."""


class HttpError(Exception):
    """The client's doing: answered with this status, and the connection is closed."""

    status = 400
    code = "VALIDATION_FAILED"


class BadRequest(HttpError):
    """Not HTTP, or not the HTTP that is safe to understand."""


class BodyTooLarge(HttpError):
    """The body is larger than this request may have."""

    status = 413
    code = "FILE_TOO_LARGE"


class HeadTooLarge(HttpError):
    """The head is larger than any request needs."""

    status = 431


class RequestTimeout(HttpError):
    """The client stopped sending in the middle of a request."""

    status = 408
