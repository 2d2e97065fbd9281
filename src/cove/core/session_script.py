"""Bash scripts that change a session's shell for one call, or start a process from its state.

Theory of operation. A session's shell (shell/session.bash) executes two kinds of text: commands of the user, and lines
of the runtime's own, whose id starts with "i". This module writes the latter. Each is a call of one read-only function
of session.bash, so that nothing depends on the user's aliases, functions or options:

- `apply_script` changes directory and variables for one call. The shell writes down in `__cove_saved` how to undo it.
- `RESTORE_SCRIPT` undoes that after the command, or after the caller was cancelled (`SessionShell.start_settling`).
- `set_script` exports and unsets for good; `check_script` only asks whether that would work.
- `SNAPSHOT_SCRIPT` has the shell write its whole state (agent/shell_state); it is given the positional parameters.
- `enter_script` has the shell enter its directory again, when another mount has taken the place of the one it is in.
- `CALM_SCRIPT` is a round trip that changes nothing: when it is reported, a signal that came late has been taken.

The result of such a line is its status, which is put aside in `__cove_result`: `set -e` and an ERR trap do not see it,
and `$?` of the user's last command stays. 3 and 4 say why nothing was changed: a variable is read-only, or the
directory cannot be entered. All or nothing: a script that fails has undone what it began.

Processes (`session.start_process`). The command must run as `bash -c COMMAND` does, so that the program it runs last
takes bash's place (no extra process, signals and exit code are the program's own), yet find the session's state. So
bash gets the state as its startup file: BASH_ENV names descriptor 62, where the launcher puts the script that it makes
of the snapshot. In the middle of that script bash sources descriptor 61, written here: the call's variables, and its
directory. It comes before functions and options are restored, so that none of them gets in the way.

Descriptors: 61 is this process's own script, 62 the state, 63 a text that is too long to be an argument. Each closes
itself before the command runs, so that the command has no descriptors but its streams.

What can go wrong, and why it does not:

- Injection. Values reach bash as single-quoted words (`quote`), in which no byte but the quote itself is special. Names
  are not quoted: `core.command.check_environment` lets identifiers through only.
- Bytes. Text is encoded with surrogateescape: a path that is not UTF-8 reaches bash as the bytes it was.
- A command of 128 KiB or more is no argument for Linux (execve(2), MAX_ARG_STRLEN). It travels in descriptor 63 and is
  evaluated; the price is that bash stays as its parent.
- An argument list is executed by `exec -- "${__cove_argv[@]}"`, read NUL by NUL: no word is parsed a second time.
- The directory is gone when the process starts: it says so on standard error and exits with 1, as `exec` does.
- The shell does not come back from a line (`set -n`, a fifo that somebody else reads): `Shell.settle` gives up after a
  bound and kills it, and the call raises SessionTerminated.
"""

from collections.abc import Iterator, Mapping, Sequence

from cove.agent.protocol import PROCESS
from cove.core.command import (
    MAX_ENTRY_BYTES,
    OWN_DESCRIPTOR,
    READ_SCRIPT,
    RUN_SCRIPT,
    SCRIPT_DESCRIPTOR,
    STATE_DESCRIPTOR,
    Invocation,
)

# Statuses by which `apply` and `check` report that they changed nothing.
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
CALM_SCRIPT = "__cove_calm"


def enter_script(otherwise: str) -> str:
    """Enter the shell's directory once more by its name, or that other one where it is gone."""
    return _call("__cove_enter", otherwise)


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
    """Return a word that bash reads as exactly this text."""
    return "'" + text.replace("'", "'\\''") + "'"


def process_invocation(
    command: str | Sequence[str], snapshot: int, cwd: str, env: Mapping[str, str | None], user: bytes = b""
) -> Invocation:
    """Build the invocation of a process from a shell's state: variables, functions, options, directory; no traps.

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
        snapshot_kind=PROCESS,
        user=user,
    )


def _environment_lines(env: Mapping[str, str | None]) -> Iterator[str]:
    for name, value in env.items():
        yield f"unset -v {name}" if value is None else f"export {name}={quote(value)}"


def _enter(cwd: str) -> str:
    complaint = f"echo cove: cannot enter directory {quote(cwd)} >&2"
    return f"cd -- {quote(cwd)} 2>/dev/null || {{ {complaint}; exit 1; }}"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
