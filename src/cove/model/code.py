"""Results of code: values, displays, output, errors."""

import base64
from datetime import datetime
from enum import StrEnum

import msgspec

from cove.model.event import StreamName
from cove.model.result import Outcome


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One value as a MIME bundle: `result["text/plain"]`. Binary types are base64 text in the bundle."""

    data: dict[str, object]
    is_main: bool = False
    truncated: bool = False

    def __getitem__(self, mime: str) -> object:
        return self.data[mime]

    def __contains__(self, mime: str) -> bool:
        return mime in self.data

    @property
    def text(self) -> str | None:
        """text/plain."""
        return self._string("text/plain")

    @property
    def html(self) -> str | None:
        """text/html."""
        return self._string("text/html")

    @property
    def markdown(self) -> str | None:
        """text/markdown."""
        return self._string("text/markdown")

    @property
    def latex(self) -> str | None:
        """text/latex."""
        return self._string("text/latex")

    @property
    def svg(self) -> str | None:
        """image/svg+xml."""
        return self._string("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """image/png, decoded."""
        return self._bytes("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """image/jpeg, decoded."""
        return self._bytes("image/jpeg")

    @property
    def json(self) -> object:
        """application/json."""
        return self.data.get("application/json")

    def _string(self, mime: str) -> str | None:
        value = self.data.get(mime)
        return value if isinstance(value, str) else None

    def _bytes(self, mime: str) -> bytes | None:
        """None also for what is not base64: code can send anything."""
        value = self._string(mime)
        try:
            return None if value is None else base64.b64decode(value)
        except ValueError:
            return None


class CodeError(msgspec.Struct, frozen=True, kw_only=True):
    """The exception that the code raised."""

    name: str
    message: str
    traceback: str


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """One finished run of code."""

    results: tuple[Result, ...]
    stdout: str
    stderr: str
    error: CodeError | None
    execution_count: int | None
    outcome: Outcome
    duration: float
    truncated: bool = False

    @property
    def is_infrastructure_failure(self) -> bool:
        """The sandbox failed, not the code: a trainer must not score this."""
        return self.outcome is Outcome.LOST

    @property
    def text(self) -> str | None:
        """The text of the last expression, if there was one."""
        mains = [result for result in self.results if result.is_main]
        return mains[-1].text if mains else None


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Printed output."""

    stream: StreamName
    text: str


class Display(msgspec.Struct, frozen=True, tag="display"):
    """A result or something displayed."""

    result: Result


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The code raised."""

    error: CodeError


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The end of the run."""

    execution_count: int | None
    outcome: Outcome
    truncated: bool = False


CodeEvent = Text | Display | Failure | Done


class CodeInterpreter(StrEnum):
    """The owner of the interpreter that runs code: Cove or, in a sandbox on an image, the image."""

    COVE = "cove"
    IMAGE = "image"


class CodeContextInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one code context."""

    id: str
    language: str
    created_at: datetime
    is_running: bool
    interpreter: CodeInterpreter = CodeInterpreter.COVE
