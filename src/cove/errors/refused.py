"""Refused requests: wrong arguments, missing rights, limits."""

from cove.errors.families import RequestError


class ValidationFailed(RequestError):
    """An argument is wrong; nothing was done."""

    code = "VALIDATION_FAILED"


class Unauthorized(RequestError):
    """The key is missing or wrong."""

    code = "UNAUTHORIZED"


class PermissionDenied(RequestError):
    """The sandbox's user may not do that, or the server does not allow it."""

    code = "PERMISSION_DENIED"


class NetworkDenied(PermissionDenied):
    """The network policy does not allow the sandbox to reach this host."""

    code = "NETWORK_DENIED"


class LimitExceeded(RequestError):
    """A configured number of things is in use."""

    code = "LIMIT_EXCEEDED"


class UnsupportedLanguage(RequestError):
    """No executor speaks this language."""

    code = "UNSUPPORTED_LANGUAGE"


class UserUnavailable(RequestError):
    """The sandbox has no such user, or no user ids to give it."""

    code = "USER_UNAVAILABLE"


class ImageInvalid(RequestError):
    """The image cannot be used: it is malformed, for another machine, or not what its digest says."""

    code = "IMAGE_INVALID"


class BuildFailed(RequestError):
    """A step of a build failed: its line, the command with its exit code, and what it printed last."""

    code = "BUILD_FAILED"

    def __init__(
        self, message: str, *, line: int = 0, command: str = "", exit_code: int | None = None, output: str = ""
    ) -> None:
        super().__init__(message, line=line, command=command, exit_code=exit_code, output=output)
        self.line = line
        self.command = command
        self.exit_code = exit_code
        self.output = output


class BackupExpired(RequestError):
    """The backup has passed its time, and is no longer restored."""

    code = "BACKUP_EXPIRED"


class MethodNotAllowed(RequestError):
    """A server's route exists, but not with this method."""

    code = "METHOD_NOT_ALLOWED"
