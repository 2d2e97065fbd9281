"""One command, one result."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from cove.core.capture import Capture
from cove.core.command import Invocation
from cove.errors import ValidationFailed
from cove.linux.memory_file import sealed_file
from cove.model import ExecResult, Outcome, ProcessExit
from cove.runtime.spawner import Spawner
from cove.runtime.supervised import TIMEOUT_EXIT_CODE

DEFAULT_MAX_OUTPUT = 16 << 20


async def run_command(
    spawner: Spawner,
    command: str | Sequence[str],
    invocation: Invocation,
    *,
    timeout: float | None,
    stdin: bytes | str | None,
    max_output: int | None,
) -> ExecResult:
    """Start, wait, and give what was captured. A cancelled caller's command is killed with all it started.

    The timeout counts from here: where nothing could be started by then, the result says `timed_out` all the same.
    """
    limit = check_max_output(max_output)
    captures = (Capture(limit), Capture(limit))
    data = check_stdin(stdin)
    started_at, began = datetime.now(UTC), time.perf_counter()

    def take(stream: int, data: bytes) -> None:
        captures[stream].append(data)

    deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
    end = await _run(spawner, invocation, take, data, deadline)
    return ExecResult(
        command=command,
        outcome=end.outcome,
        exit_code=end.exit_code,
        signal=end.signal,
        stdout_bytes=captures[0].getvalue(),
        stderr_bytes=captures[1].getvalue(),
        truncated=captures[0].truncated or captures[1].truncated,
        started_at=started_at,
        duration=time.perf_counter() - began,
    )


async def _run(
    spawner: Spawner,
    invocation: Invocation,
    take: Callable[[int, bytes], None],
    stdin: bytes | None,
    deadline: float | None,
) -> ProcessExit:
    try:
        if stdin:
            with sealed_file(stdin) as file:
                process = await spawner.spawn(invocation, take, stdin=file.fileno(), deadline=deadline)
        else:
            process = await spawner.spawn(invocation, take, deadline=deadline)
    except TimeoutError:
        return ProcessExit(outcome=Outcome.TIMED_OUT, exit_code=TIMEOUT_EXIT_CODE)
    try:
        return await asyncio.shield(process.ended)
    except asyncio.CancelledError:
        process.end(Outcome.KILLED, 0)
        await asyncio.wait([process.ended])
        raise


def check_max_output(value: int | None) -> int:
    """Return how many bytes of each stream to keep, or raise ValidationFailed."""
    if value is None:
        return DEFAULT_MAX_OUTPUT
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValidationFailed(f"max_output must be a number of bytes, 0 or more, not {value!r}")
    return value


def check_input(data: bytes | str) -> bytes:
    """Return what is to be written to a process that runs, or raise ValidationFailed."""
    checked = check_stdin(data)
    if checked is None:
        raise ValidationFailed("there is nothing to write: give bytes or a string")
    return checked


def check_stdin(stdin: bytes | str | None) -> bytes | None:
    """Return the input as bytes, or raise ValidationFailed."""
    if stdin is None or isinstance(stdin, bytes):
        return stdin
    if isinstance(stdin, str):
        try:
            return stdin.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ValidationFailed(f"stdin has a character that UTF-8 cannot carry: {error.reason}") from None
    raise ValidationFailed(f"stdin must be bytes or a string, not {type(stdin).__name__}")
