"""Requests for commands and processes."""

import re
from typing import Literal, Self

from cove.errors import ValidationFailed
from cove.wire.requests.request import Command, Environment, Request, Seconds, Waiting

_MOST_PATTERN = 1 << 16


class Exec(Request, frozen=True):
    """One command. Standard input is `stdin`, or `stdin_base64` for bytes that are not text."""

    command: Command
    cwd: str | None = None
    env: Environment | None = None
    timeout: Seconds = None
    stdin: str | None = None
    stdin_base64: bytes | None = None
    max_output: int | None = None

    @classmethod
    def of(cls, **arguments: object) -> Self:
        if not isinstance(stdin := arguments.get("stdin"), str | None):
            arguments["stdin_base64"], arguments["stdin"] = stdin, None
        return super().of(**arguments)

    def arguments(self) -> dict[str, object]:
        if self.stdin is not None and self.stdin_base64 is not None:
            raise ValidationFailed("give stdin or stdin_base64, not both")
        return {
            "command": self.command,
            "cwd": self.cwd,
            "env": self.env,
            "timeout": self.timeout,
            "stdin": self.stdin if self.stdin_base64 is None else self.stdin_base64,
            "max_output": self.max_output,
        }


class ExecAs(Exec, frozen=True):
    """One command of the sandbox's: `user` is who runs it."""

    user: str | None = None

    def arguments(self) -> dict[str, object]:
        return {**super().arguments(), "user": self.user}


class StartProcess(Request, frozen=True):
    """A process that lives on its own."""

    command: Command
    id: str | None = None
    cwd: str | None = None
    env: Environment | None = None
    timeout: Seconds = None
    stdin: bool = False
    keep: bool = True
    lossless: bool = False


class StartProcessAs(StartProcess, frozen=True):
    """A process of the sandbox's: `user` is who runs it."""

    user: str | None = None


class Kill(Request, frozen=True):
    """A signal by name or number."""

    signal: int | str = "TERM"


class Terminate(Request, frozen=True):
    """TERM, and KILL after `grace` seconds."""

    grace: float = 5.0


class Wait(Waiting, frozen=True):
    """The limit of a wait; the process runs on."""


class Logs(Request, frozen=True):
    """From which cursor on."""

    since: str | None = None
    follow: bool = True
    lossless: bool = False


class WaitForLog(Waiting, frozen=True, kw_only=True):
    """A text or, with `is_expression`, a regular expression with the flags of Python's `re`."""

    pattern: str
    is_expression: bool = False
    flags: int = 0

    @classmethod
    def of(cls, **arguments: object) -> Self:
        if isinstance(pattern := arguments["pattern"], re.Pattern):
            flags = pattern.flags & ~re.UNICODE
            arguments |= {"pattern": pattern.pattern, "is_expression": True, "flags": flags}
        return super().of(**arguments)

    def arguments(self) -> dict[str, object]:
        if not self.is_expression:
            return {"pattern": self.pattern, "timeout": self.timeout}
        if len(self.pattern) > _MOST_PATTERN:
            raise ValidationFailed(f"pattern is longer than {_MOST_PATTERN} characters")
        try:
            return {"pattern": re.compile(self.pattern, self.flags & ~re.DEBUG), "timeout": self.timeout}
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ValidationFailed(f"the pattern is not a regular expression: {error}") from None


class WaitForPort(Waiting, frozen=True, kw_only=True):
    """A readiness check of a port."""

    port: int
    mode: Literal["http", "tcp"] = "http"
    path: str = "/"
    status: tuple[int, int] = (200, 399)
