"""`exec`: run one command, capture its output, return one result."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from cove.core.capture import Capture
from cove.core.command import Invocation, check_max_output, check_stdin
from cove.linux.descriptors import sealed_file
from cove.model import ExecResult, Outcome, ProcessExit
from cove.runtime.exit_record import TIMEOUT_EXIT_CODE
from cove.runtime.journal import Entry
from cove.runtime.spawner import Spawner
from cove.tasks import settled


async def run_command(
    spawner: Spawner,
    command: str | Sequence[str],
    invocation: Invocation,
    *,
    timeout: float | None,
    stdin: bytes | str | None,
    max_output: int | None,
    entry: Entry | None = None,
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

    deadline = None if timeout is None else spawner.clock.time() + timeout
    end = await _run(spawner, invocation, take, data, deadline)
    result = ExecResult(
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
    if entry is not None:
        entry.use(end)
        entry.end(result, captures[0].total + captures[1].total)
    return result


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
    return await settled(process.ended, on_cancel=lambda: process.end(Outcome.KILLED, 0))
