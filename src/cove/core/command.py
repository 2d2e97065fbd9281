"""Build argv and environment from what the caller asks to run."""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cove.errors import ValidationFailed

# execve(2): MAX_ARG_STRLEN, one argument or environment entry with its final NUL.
MAX_ENTRY_BYTES = 131072

# By its path, because PATH is the caller's; the last argument makes `$0` and messages say `bash`.
BASH, _SHELL_NAME = b"/bin/bash", b"bash"
# Descriptors of a process from a session's state: what it does of its own, the state, a command too long for argv.
OWN_DESCRIPTOR, STATE_DESCRIPTOR, SCRIPT_DESCRIPTOR = 61, 62, 63
# BASH_EXECUTION_STRING is where `bash -c` itself keeps the command.
READ_SCRIPT = f"mapfile -d '' -t -n 1 -u {SCRIPT_DESCRIPTOR} BASH_EXECUTION_STRING; exec {SCRIPT_DESCRIPTOR}<&-"
# bash can become the program that it runs last only where the command is an argument. Elsewhere it lives until that
# program has answered TERM, and ends as the program did. Where it waits for none (a builtin is at hand), TERM ends it.
_END = (
    '{ [[ $__cove == 143 || $(\\builtin type -t -- "${BASH_COMMAND%% *}") == [bkf][ueu]* ]] && '
    "\\builtin trap - TERM && \\builtin kill -TERM $$; } 2>/dev/null; \\builtin exit $__cove"
)
RUN_SCRIPT = f"\\builtin trap '__cove=$?; {_END}' TERM; \\builtin eval \"$BASH_EXECUTION_STRING\""
DEFAULT_MAX_OUTPUT = 16 << 20
_FOREVER = 100 * 365 * 86400
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Command = str | Sequence[str]
Environment = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Invocation:
    """A validated command; `files` are what it finds open under these descriptor numbers.

    With a snapshot (a descriptor of the caller's) it finds the script that restores that shell's state under
    STATE_DESCRIPTOR, of the kind that `agent.protocol` names: a session's, a copy's or a process's. `user` is who runs
    it, as core/users encodes that; nobody in particular where there is one user.
    """

    argv: tuple[bytes, ...]
    env: Mapping[bytes, bytes] = field(default_factory=dict)
    cwd: bytes = b"/"
    files: Mapping[int, bytes] = field(default_factory=dict)
    snapshot: int | None = None
    snapshot_kind: bytes = b""
    user: bytes = b""


def build_invocation(command: Command, *, cwd: str, env: Mapping[str, str], user: bytes = b"") -> Invocation:
    """Validate and encode one command; raises ValidationFailed before anything has run."""
    argv, script = _argv(command)
    files = {} if script is None else {SCRIPT_DESCRIPTOR: script}
    return Invocation(argv=argv, env=encode_environment(env), cwd=encode_text(cwd, "cwd"), files=files, user=user)


def merge_environment(*layers: Environment | None) -> dict[str, str]:
    """Later layers win; None unsets."""
    merged: dict[str, str] = {}
    for layer in layers:
        for name, value in check_environment(layer).items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = value
    return merged


def check_environment(env: Environment | None) -> Environment:
    """Return env, or raise ValidationFailed naming the first bad entry."""
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise ValidationFailed(f"env must be a mapping of names to strings, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValidationFailed(
                f"environment variable name {name!r} is not allowed: use letters, digits and _, not first a digit"
            )
        if value is not None:
            if not isinstance(value, str):
                raise ValidationFailed(f"environment variable {name} must be a string or None, not {value!r}")
            if len(name) + 1 + len(encode_text(value, f"environment variable {name}")) >= MAX_ENTRY_BYTES:
                raise ValidationFailed(f"environment variable {name} is over 128 KiB: put it in a file")
    return env


def encode_environment(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """The environment as the kernel takes it."""
    return {os.fsencode(name): os.fsencode(value) for name, value in env.items()}


def check_timeout(timeout: float | None) -> float | None:
    """Return the timeout, or raise ValidationFailed."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ValidationFailed(f"timeout must be None or a number of seconds, 0 or more, not {timeout!r}")
    return float(timeout) if timeout < _FOREVER else None


def _argv(command: Command) -> tuple[tuple[bytes, ...], bytes | None]:
    if isinstance(command, str):
        line = encode_text(command, "command")
        if len(line) < MAX_ENTRY_BYTES:
            return (BASH, b"-c", line, _SHELL_NAME), None
        return (BASH, b"-c", f"{READ_SCRIPT}; {RUN_SCRIPT}".encode(), _SHELL_NAME), line
    if not isinstance(command, Sequence) or isinstance(command, bytes):  # type: ignore[unreachable]  # callers err
        raise ValidationFailed(f"command must be a string or a list of strings, not {type(command).__name__}")
    if not command or not command[0]:
        raise ValidationFailed("command is an empty list: give at least the program to run")
    argv = tuple(encode_text(word, f"command[{at}]") for at, word in enumerate(command))
    for at, word in enumerate(argv):
        if len(word) >= MAX_ENTRY_BYTES:
            raise ValidationFailed(f"command[{at}] is over 128 KiB, more than Linux passes: use a file or stdin")
    return argv, None


def encode_text(text: str, subject: str) -> bytes:
    """The bytes of a text that Linux can pass, or ValidationFailed."""
    if not isinstance(text, str):
        raise ValidationFailed(f"{subject} must be a string, not {type(text).__name__}")
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValidationFailed(f"{subject} has a character that UTF-8 cannot carry: {error.reason}") from None
    if b"\0" in data:
        raise ValidationFailed(f"{subject} contains a NUL character, which Linux cannot pass")
    return data


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


def parse_signal(value: int | str) -> int:
    """A number, `TERM` or `SIGTERM`; anything else is ValidationFailed."""
    if isinstance(value, str):
        name = value.upper()
        known = signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
        if known is not None:
            return int(known)
    elif not isinstance(value, bool) and value in range(1, signal.NSIG):
        return int(value)
    raise ValidationFailed(f"unknown signal {value!r}: use a name like 'TERM' or a number from 1 to {signal.NSIG - 1}")
