"""The exit record of a process: exit codes, and the outcome that a wait status or a refusal stands for."""

import os
import signal as signals
from collections.abc import Collection

from cove.agent.protocol import MOST_WAIT_STATUS, ProtocolError, number
from cove.model import Outcome, ProcessExit

TIMEOUT_EXIT_CODE = 124
CWD_EXIT_CODE = 1
KILLED_EXIT_CODE = 128 + signals.SIGKILL
NOT_EXECUTABLE_EXIT_CODE = 126
NOT_FOUND_EXIT_CODE = 127

# Seconds of the user and of the system, and the most memory in bytes.
Usage = tuple[float, float, int]


def check_wait_status(field: bytes) -> int:
    """The wait status of a process that has ended: wait(2)."""
    status = number(field, MOST_WAIT_STATUS)
    if not os.WIFEXITED(status) and not os.WIFSIGNALED(status):
        raise ProtocolError(f"wait status {status} is not an end")
    return status


def exit_by_status(status: int, usage: Usage | None, *, ending: Outcome | None, sent: Collection[int]) -> ProcessExit:
    """The record for a wait status; `ending` is why it was ended from here, `sent` the signals that came from here."""
    code = os.waitstatus_to_exitcode(status)
    user, system, rss = usage or (None, None, None)
    outcome = Outcome.EXITED if code >= 0 else Outcome.SIGNALED
    if ending is Outcome.TIMED_OUT:
        outcome = Outcome.TIMED_OUT
    elif code < 0 and (-code in sent or ending is not None):
        outcome = ending or Outcome.KILLED
    return ProcessExit(
        outcome=outcome,
        exit_code=TIMEOUT_EXIT_CODE if outcome is Outcome.TIMED_OUT else code if code >= 0 else 128 - code,
        signal=-code if code < 0 else None,
        user_seconds=user,
        system_seconds=system,
        max_rss_bytes=rss,
    )


def exit_with_sandbox(outcome: Outcome) -> ProcessExit:
    """The record of a process whose sandbox has gone: killed with it, or lost."""
    if outcome is Outcome.LOST:
        return ProcessExit(outcome=outcome, exit_code=None)
    return ProcessExit(outcome=outcome, exit_code=KILLED_EXIT_CODE, signal=signals.SIGKILL)


def exit_by_refusal(step: bytes, code: int, *, program: bytes, cwd: bytes) -> tuple[ProcessExit, bytes]:
    """The record of a process that was never started, as a shell would report it, and the line that says why."""
    reason = os.strerror(code)
    if step == b"cwd":
        exit_code = CWD_EXIT_CODE
        message = b"cove: cannot enter directory " + cwd + b": " + reason.encode() + b"\n"
    elif step == b"state":
        exit_code = NOT_EXECUTABLE_EXIT_CODE
        message = b"cove: the state of the session cannot be restored: " + reason.encode() + b"\n"
    else:
        is_missing = code in (2, 20)
        exit_code = NOT_FOUND_EXIT_CODE if is_missing else NOT_EXECUTABLE_EXIT_CODE
        reason = "command not found" if is_missing else reason
        message = b"cove: " + program + b": " + reason.encode() + b"\n"
    return ProcessExit(outcome=Outcome.EXITED, exit_code=exit_code), message
