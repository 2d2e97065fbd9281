"""Commands as requests."""

from collections.abc import Mapping, Sequence

from cove.core.command import check_timeout
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
        command=_command(command),
        cwd=cwd,
        env=None if env is None else dict(env),
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
) -> StartProcess:
    """The arguments of `start_process`."""
    return StartProcess(
        command=_command(command),
        id=id,
        cwd=cwd,
        env=None if env is None else dict(env),
        timeout=check_timeout(timeout),
        stdin=stdin,
        keep=keep,
    )


def _command(command: str | Sequence[str]) -> str | list[str]:
    return command if isinstance(command, str) else list(command)
