"""Bash scripts that change a session's shell for one call, or start a process from its state."""

from collections.abc import Iterator, Mapping, Sequence

from cove.core.command import (
    MAX_ENTRY_BYTES,
    OWN_DESCRIPTOR,
    READ_SCRIPT,
    RUN_SCRIPT,
    SCRIPT_DESCRIPTOR,
    STATE_DESCRIPTOR,
    Invocation,
)

# What `apply` and `check` report when they changed nothing.
READONLY_STATUS = 3
CWD_STATUS = 4

_READ_PROGRAM = f"mapfile -d '' -t -u {SCRIPT_DESCRIPTOR} __cove_argv; exec {SCRIPT_DESCRIPTOR}<&-"
_RUN_PROGRAM = b'\\builtin exec -- "${__cove_argv[@]}"'


def apply_script(cwd: str | None, env: Mapping[str, str | None]) -> str:
    """Change directory and variables for one call, remembering in the shell what they were.

    Its status is 0, READONLY_STATUS or CWD_STATUS.
    """
    return _call("__cove_apply", cwd or "", *_assignments(env))


RESTORE_SCRIPT = "__cove_restore"
SNAPSHOT_SCRIPT = '__cove_snapshot "$@"'
# Not even `:`, which may be a function of the user's.
NOTHING_SCRIPT = ""


def set_script(env: Mapping[str, str | None]) -> str:
    """Export and unset for good; its status is 0, or READONLY_STATUS when nothing was changed."""
    return _call("__cove_set", *_assignments(env))


def check_script(env: Mapping[str, str | None]) -> str:
    """Change nothing; its status is READONLY_STATUS when one of these cannot be changed."""
    return _call("__cove_check", *env)


def _assignments(env: Mapping[str, str | None]) -> list[str]:
    return [name if value is None else f"{name}={value}" for name, value in env.items()]


def _call(*words: str) -> str:
    """A call of one of our functions. Its status is put aside, so that `set -e` does not see it."""
    return " ".join([words[0], *map(quote, words[1:])]) + " || __cove_result=$?"


def quote(text: str) -> str:
    """A word that bash reads as exactly this text."""
    return "'" + text.replace("'", "'\\''") + "'"


def process_invocation(
    command: str | Sequence[str], snapshot: int, cwd: str, env: Mapping[str, str | None]
) -> Invocation:
    """A process that starts from a shell's state: variables, functions, options, directory; no traps.

    bash reads that state as its startup file, and then is given the command as any `bash -c` is: what it runs last
    takes its place.
    """
    own = [f"exec {OWN_DESCRIPTOR}<&-", "BASH_ARGV0=bash", *_environment_lines(env), _enter(cwd)]
    files = {}
    if not isinstance(command, str):
        line = _RUN_PROGRAM
        files[SCRIPT_DESCRIPTOR] = b"".join(_encode(word) + b"\0" for word in command)
        own.append(_READ_PROGRAM)
    elif len(line := _encode(command)) >= MAX_ENTRY_BYTES:
        files[SCRIPT_DESCRIPTOR] = line + b"\0"
        line = RUN_SCRIPT.encode()
        own.append(READ_SCRIPT)
    return Invocation(
        argv=(b"/bin/bash", b"-c", line),
        env={b"BASH_ENV": b"/dev/fd/%d" % STATE_DESCRIPTOR},
        cwd=b"/",
        files={OWN_DESCRIPTOR: _encode("\n".join(own) + "\n"), **files},
        snapshot=snapshot,
    )


def _environment_lines(env: Mapping[str, str | None]) -> Iterator[str]:
    for name, value in env.items():
        yield f"unset -v {name}" if value is None else f"export {name}={quote(value)}"


def _enter(cwd: str) -> str:
    complaint = f"echo cove: cannot enter directory {quote(cwd)} >&2"
    return f"cd -- {quote(cwd)} 2>/dev/null || {{ {complaint}; exit 1; }}"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
