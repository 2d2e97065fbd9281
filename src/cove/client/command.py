"""Encode commands as requests."""

from collections.abc import Mapping, Sequence

from cove.core.command import check_environment, check_timeout
from cove.errors import ValidationFailed
from cove.wire.requests import Exec, StartProcess


def exec_request(
    command: str | Sequence[str],
    cwd: str | None,
    env: Mapping[str, str | None] | None,
    timeout: float | None,
    stdin: bytes | str | None,
    max_output: int | None,
) -> Exec:
    """The arguments of `exec`."""
    return Exec(
        command=words(command),
        cwd=cwd,
        env=environment(env),
        timeout=check_timeout(timeout),
        stdin=stdin if isinstance(stdin, str) else None,
        stdin_base64=None if isinstance(stdin, str) else stdin,
        max_output=max_output,
    )


def start_request(
    command: str | Sequence[str],
    id: str | None,
    cwd: str | None,
    env: Mapping[str, str | None] | None,
    timeout: float | None,
    stdin: bool,
    keep: bool,
    lossless: bool,
) -> StartProcess:
    """The arguments of `start_process`."""
    return StartProcess(
        command=words(command),
        id=id,
        cwd=cwd,
        env=environment(env),
        timeout=check_timeout(timeout),
        stdin=stdin,
        keep=keep,
        lossless=lossless,
    )


def environment(env: Mapping[str, str | None] | None) -> dict[str, str | None] | None:
    """Return the environment as a dictionary, or raise ValidationFailed."""
    return None if env is None else {**check_environment(env)}


def words(command: str | Sequence[str]) -> str | list[str]:
    """A shell line or a list, or ValidationFailed."""
    if isinstance(command, str):
        return command
    if not isinstance(command, Sequence) or isinstance(command, bytes):  # type: ignore[unreachable]  # callers err
        raise ValidationFailed(f"command must be a string or a list of strings, not {type(command).__name__}")
    return list(command)
