"""The scripts with which the runtime changes a session's shell for one call, or starts a process from its state."""

from collections.abc import Mapping, Sequence

from cove.core.command import SCRIPT_DESCRIPTOR, Invocation
from cove.core.shell_state import ShellState, quote

STATE_DESCRIPTOR = 62

# What `apply` reports when it changed nothing.
READONLY_STATUS = 3
CWD_STATUS = 4

_READ_COMMAND = f'IFS= read -r -d "" -u {SCRIPT_DESCRIPTOR} BASH_EXECUTION_STRING; exec {SCRIPT_DESCRIPTOR}<&-'
_SHELL_STUB = f'{_READ_COMMAND}; . /dev/fd/{STATE_DESCRIPTOR}; builtin eval "$BASH_EXECUTION_STRING"'
_PROGRAM_STUB = (
    f"mapfile -d '' -t -u {SCRIPT_DESCRIPTOR} __cove_argv; exec {SCRIPT_DESCRIPTOR}<&-; "
    f'. /dev/fd/{STATE_DESCRIPTOR}; builtin exec "${{__cove_argv[@]}}"'
)


def apply_script(cwd: str | None, env: Mapping[str, str | None]) -> str:
    """Change directory and variables for one call, remembering in the shell what they were.

    Its status is 0, READONLY_STATUS or CWD_STATUS.
    """
    return _call("__cove_apply", cwd or "", *_assignments(env))


RESTORE_SCRIPT = "__cove_restore"
# Not even `:`, which may be a function of the user's.
NOTHING_SCRIPT = ""


def set_script(env: Mapping[str, str | None]) -> str:
    """Export and unset for good; its status is 0, or READONLY_STATUS when nothing was changed."""
    return _call("__cove_set", *_assignments(env))


def _assignments(env: Mapping[str, str | None]) -> list[str]:
    return [name if value is None else f"{name}={value}" for name, value in env.items()]


def _call(*words: str) -> str:
    """A call of one of our functions. Its status is put aside, so that `set -e` does not see it."""
    return " ".join([words[0], *map(quote, words[1:])]) + " || __cove_result=$?"


def process_invocation(
    command: str | Sequence[str], state: ShellState, cwd: str | None, env: Mapping[str, str | None]
) -> Invocation:
    """A process that starts from a shell's state: variables, functions, options, directory; no traps."""
    directory = quote(cwd if cwd is not None else state.cwd)
    complaint = f"\\builtin echo cove: cannot enter directory {directory} >&2"
    enter = f"\\builtin cd -- {directory} 2>/dev/null || {{ {complaint}; \\builtin exit 1; }}"
    script = state.script(traps=False, env=env, before_options=f"\\builtin exec {STATE_DESCRIPTOR}<&-\n{enter}")
    if isinstance(command, str):
        stub, content = _SHELL_STUB, command.encode("utf-8", "surrogateescape") + b"\0"
    else:
        stub = _PROGRAM_STUB
        content = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in command)
    return Invocation(
        argv=(b"/bin/bash", b"-c", stub.encode(), b"bash"),
        env={},
        cwd=b"/",
        files={STATE_DESCRIPTOR: script.encode("utf-8", "surrogateescape"), SCRIPT_DESCRIPTOR: content},
    )
