"""The scripts with which the runtime changes a session's shell for one call, or starts a process from its state."""

from collections.abc import Mapping, Sequence

from cove.core.command import SCRIPT_DESCRIPTOR, Invocation
from cove.core.shell_state import ShellState, environment_lines, quote

STATE_DESCRIPTOR = 62

# What `apply` reports when it changed nothing.
READONLY_STATUS = 3
CWD_STATUS = 4

_READ_COMMAND = f'IFS= read -r -d "" -u {SCRIPT_DESCRIPTOR} BASH_EXECUTION_STRING; exec {SCRIPT_DESCRIPTOR}<&-'
_SHELL_STUB = f'{_READ_COMMAND}; . /dev/fd/{STATE_DESCRIPTOR}; eval "$BASH_EXECUTION_STRING"'
_PROGRAM_STUB = (
    f"mapfile -d '' -t -u {SCRIPT_DESCRIPTOR} __cove_argv; exec {SCRIPT_DESCRIPTOR}<&-; "
    f'. /dev/fd/{STATE_DESCRIPTOR}; exec "${{__cove_argv[@]}}"'
)


def apply_script(cwd: str | None, env: Mapping[str, str | None]) -> str:
    """Change directory and variables for one call, remembering in the shell what they were.

    Its status is 0, READONLY_STATUS or CWD_STATUS; a failing command inside must not end a shell with `set -e`.
    """
    attributes = "".join(f"${{{name}+${{{name}@a}}}}" for name in env)
    lines = [
        "__cove_saved= __cove_refused=0",
        f'[[ "{attributes}" != *r* ]] || __cove_refused={READONLY_STATUS}',
    ]
    if cwd is not None:
        lines += [
            "if [[ $__cove_refused == 0 ]]; then",
            '__cove_saved="builtin cd -- ${PWD@Q};OLDPWD=${OLDPWD-};"',
            f"builtin cd -- {quote(cwd)} || __cove_refused={CWD_STATUS}",
            "fi",
        ]
    lines += ["if [[ $__cove_refused == 0 ]]; then", ":"]
    for name, value in env.items():
        lines.append(f'__cove_saved+="builtin unset -v {name};${{{name}+${{{name}[@]@A}};}}"')
        lines.append(f"builtin unset -v {name}" if value is None else f"builtin export {name}={quote(value)}")
    lines += ["fi", "__cove_status $__cove_refused && __cove_status 0"]
    return "\n".join(lines)


RESTORE_SCRIPT = 'builtin eval "$__cove_saved"; __cove_saved='


def set_script(env: Mapping[str, str | None]) -> str:
    """Export and unset for good; its status is 1 when a variable cannot be changed."""
    steps = " && ".join(environment_lines(env)) or ":"
    return f"if {steps}; then __cove_status 0; else __cove_status 1 && :; fi"


def process_invocation(
    command: str | Sequence[str], state: ShellState, cwd: str | None, env: Mapping[str, str | None]
) -> Invocation:
    """A process that starts from a shell's state: variables, functions, options, directory; no traps."""
    directory = quote(cwd if cwd is not None else state.cwd)
    complaint = f"builtin echo cove: cannot enter directory {directory} >&2"
    enter = f"builtin cd -- {directory} 2>/dev/null || {{ {complaint}; exit 1; }}"
    script = state.script(traps=False, env=env, before_options=f"exec {STATE_DESCRIPTOR}<&-\n{enter}")
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
