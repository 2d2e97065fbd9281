"""One call of `session.exec`: its validated arguments, and its output so far."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from cove.core.capture import Capture
from cove.core.command import build_invocation, check_environment, check_max_output, check_stdin, encode_text
from cove.core.session_script import quote
from cove.model import ExecResult, Outcome
from cove.model.event import StreamName
from cove.runtime.clock import Clock
from cove.runtime.exit_record import TIMEOUT_EXIT_CODE

_TICKS_PER_SECOND = 100


OnOutput = Callable[[StreamName, bytes], None]


class _ToldCapture(Capture):
    """Tells somebody what it takes."""

    __slots__ = ("_tell",)

    def __init__(self, limit: int, tell: Callable[[bytes], None]) -> None:
        super().__init__(limit)
        self._tell = tell

    def append(self, data: bytes) -> None:
        super().append(data)
        self._tell(data)


def _told(limit: int, on_output: OnOutput) -> tuple[Capture, Capture]:
    return _ToldCapture(limit, partial(on_output, "stdout")), _ToldCapture(limit, partial(on_output, "stderr"))


class SessionCall:
    """The checked arguments, the clock and the captures of one call."""

    __slots__ = (
        "began",
        "captures",
        "command",
        "cwd",
        "deadline",
        "env",
        "started_at",
        "stdin",
        "text",
        "ticks",
        "timeout",
    )

    def __init__(
        self,
        clock: Clock,
        command: str | Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str | None] | None,
        timeout: float | None,
        stdin: bytes | str | None,
        max_output: int | None,
        on_output: OnOutput | None = None,
    ) -> None:
        self.command = command
        self.text = _encode(command)
        self.cwd = None if cwd is None else encode_text(cwd, "cwd").decode("utf-8", "surrogateescape")
        self.env = check_environment(env)
        self.timeout = timeout
        self.deadline = 0.0 if timeout is None else clock.time() + timeout
        self.stdin = check_stdin(stdin)
        limit = check_max_output(max_output)
        self.captures = (Capture(limit), Capture(limit)) if on_output is None else _told(limit, on_output)
        self.started_at = datetime.now(UTC)
        self.began = time.perf_counter()
        # Processes that started earlier, in the kernel's own measure, are none of this call's: proc(5), starttime.
        self.ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_SECOND)

    @property
    def changes_shell(self) -> bool:
        """Directory or variables are for this call only."""
        return self.cwd is not None or bool(self.env)

    @property
    def label(self) -> str:
        """The command as one line."""
        return self.command if isinstance(self.command, str) else " ".join(self.command)

    @property
    def output(self) -> str:
        """The output so far."""
        return self.captures[0].getvalue().decode("utf-8", "replace")

    @property
    def output_bytes(self) -> int:
        """The bytes of output so far, also of those that are not kept."""
        return self.captures[0].total + self.captures[1].total

    def give_up(self, session_id: str) -> ExecResult:
        """Say that its time was up before its turn came: nothing was started."""
        self.captures[1].append(b"cove: the session was busy until the time was up: nothing was started\n")
        return self.result(session_id, Outcome.TIMED_OUT, TIMEOUT_EXIT_CODE)

    def result(self, session_id: str, outcome: Outcome, exit_code: int | None) -> ExecResult:
        """Make the result."""
        stdout, stderr = self.captures
        return ExecResult(
            command=self.command,
            outcome=outcome,
            exit_code=exit_code,
            stdout_bytes=stdout.getvalue(),
            stderr_bytes=stderr.getvalue(),
            truncated=stdout.truncated or stderr.truncated,
            started_at=self.started_at,
            duration=time.perf_counter() - self.began,
            session_id=session_id,
        )


def _encode(command: str | Sequence[str]) -> bytes:
    """The text that the shell evaluates; a list becomes words that arrive literally."""
    if isinstance(command, str):
        return encode_text(command, "command")
    build_invocation(command, cwd="/", env={})
    return encode_text(" ".join(quote(word) for word in command), "command")
