"""Announce what happens to a server, as one line each on its standard output: for people, or as JSON."""

import os
import select
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from cove.server.counters import count_rarely

_STDOUT: Final = 1
# As much as a pipe that is ready takes in one piece: pipe(7).
_MOST_BYTES: Final = 4096


class LogFormat(StrEnum):
    """The form of the lines."""

    HUMAN = "human"
    JSON = "json"


class Event(StrEnum):
    """The subjects of lines."""

    SERVING = "serving"
    ENDED = "process_ended"
    REFUSED = "requests_refused"
    NOTICE = "notice"


def announce(form: LogFormat, event: Event, message: str, **facts: str | int | None) -> None:
    """Write one line, in one piece. Who does not read misses it: no process of a server waits for that."""
    line = message
    if form is LogFormat.JSON:
        time = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
        line = msgspec.json.encode({"time": time, "event": event, **facts, "message": message}).decode()
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    try:
        if poll.poll(0) == [(_STDOUT, select.POLLOUT)]:
            os.write(_STDOUT, line.encode()[: _MOST_BYTES - 1] + b"\n")
    except OSError:
        return  # its reader has just gone, or its disk is full: a server outlives who started it


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process that nobody wanted: its exit code, negative for a signal, None if unknown; what follows."""

    role: str
    pid: int
    end: int | None
    then: str


def announce_death(home: Path, form: LogFormat, death: Death, **facts: str | None) -> None:
    """Say that a process has died, how, and what follows; and count it. Blocks."""
    role, pid, end, then = death.role, death.pid, death.end, death.then
    count_rarely(home, f'cove_process_deaths_total{{role="{role}"}}')
    announce(
        form,
        Event.ENDED,
        f"The {role} with pid {pid} {describe_end(end)}: {then}.",
        role=role,
        pid=pid,
        exit_code=end if end is not None and end >= 0 else None,
        signal=signal.Signals(-end).name if end is not None and end < 0 else None,
        then=then,
        **facts,
    )


def describe_end(end: int | None) -> str:
    """Say how a process has ended."""
    if end is None:
        return "has ended"
    return f"was ended by {signal.Signals(-end).name}" if end < 0 else f"ended with exit code {end}"
