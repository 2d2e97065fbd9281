"""The base of all errors and the four families below it."""

from typing import ClassVar


class CoveError(Exception):
    """The base of all errors: a code, a message that says what to do, and the facts."""

    code: ClassVar[str] = "INTERNAL"
    _is_ours: bool = False

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = details

    @property
    def is_infrastructure_failure(self) -> bool:
        """Return whether Cove or the machine failed, not what runs inside: a trainer must not score this."""
        return self._is_ours


class RequestError(CoveError):
    """The request has to change before it can succeed."""


class NothingStarted(CoveError):
    """Nothing was started: trying again is safe."""

    _is_ours = True


class MayHaveRun(CoveError):
    """Something has run, or is running."""


class Internal(CoveError):
    """A bug in Cove."""

    _is_ours = True
