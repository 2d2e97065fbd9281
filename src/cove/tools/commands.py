"""Tools that run commands in the shell of the conversation: run_command, and the fixed shapes `bash` and `shell`."""

import asyncio
from dataclasses import dataclass
from typing import Final

from cove.core.model_text import cut_middle, make_readable
from cove.errors import SessionNotFound, SessionTerminated
from cove.model import ExecResult, NetworkDenial, Outcome
from cove.tools.arguments import Bash, RunCommand, Shell
from cove.tools.conversation import Conversation
from cove.tools.result import Json, ToolFailed, ToolResult

_ENDED: Final = "The shell has ended with exit code {}. The next command gets a new one, in the first directory."


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has run; `note` is what the model has to know beside its output."""

    stdout: str
    stderr: str
    exit_code: int | None
    has_timed_out: bool
    note: str

    @property
    def is_ok(self) -> bool:
        """Return whether it ended with 0, in a shell that lives on."""
        return self.exit_code == 0 and not self.note

    @property
    def text(self) -> str:
        """The output, then the note."""
        parts = [self.stdout, f"[stderr]\n{self.stderr}" if self.stderr and self.stdout else self.stderr]
        output = "\n".join(part.rstrip("\n") for part in parts if part)
        return "\n".join(part for part in (output or "(no output)", self.note) if part)


_NOT_RUN: Final = Ran("", "", None, True, "[not run: those before took all the time]")


async def run_command(state: Conversation, arguments: RunCommand) -> ToolResult:
    """Run a command; a failure of it is no error of the tool."""
    return ToolResult(text=state.fit((await _run(state, arguments.command, arguments.timeout)).text))


async def bash(state: Conversation, arguments: Bash) -> ToolResult:
    """Run a command, or begin with a new shell."""
    if arguments.restart:
        await state.restart_session()
        return ToolResult(text="There is a new shell.")
    if arguments.command is None:
        raise ToolFailed("give a command, or restart: true")
    ran = await _run(state, arguments.command, arguments.timeout)
    return ToolResult(text=state.fit(ran.text), is_error=not ran.is_ok)


async def shell(state: Conversation, arguments: Shell) -> ToolResult:
    """Run commands one after the other, whatever comes of each."""
    texts = [ran.text for ran in await _run_all(state, arguments)]
    return ToolResult(text=state.fit("\n".join(texts)))


async def shell_output(state: Conversation, arguments: Shell) -> list[Json]:
    """Run commands and give each its entry of a `shell_call_output`."""
    ran = await _run_all(state, arguments)
    most = min(arguments.max_output_length or state.limits.max_characters, state.limits.max_characters)
    return [_entry(each, max(most // len(ran), 2)) for each in ran]


async def _run_all(state: Conversation, arguments: Shell) -> list[Ran]:
    """Run one after the other; those whose turn does not come within the longest timeout are not run."""
    seconds = state.seconds(None if arguments.timeout_ms is None else arguments.timeout_ms / 1000)
    clock = asyncio.get_running_loop().time
    end = clock() + state.limits.max_timeout
    ran: list[Ran] = []
    for command in arguments.commands:
        left = end - clock()
        ran.append(await _run(state, command, min(seconds, left)) if left > 0 else _NOT_RUN)
    return ran


def _entry(ran: Ran, most: int) -> Json:
    outcome: Json = {"type": "timeout"} if ran.has_timed_out else {"type": "exit", "exit_code": ran.exit_code or 0}
    stderr = "\n".join(part for part in (ran.stderr, ran.note) if part)
    return {"stdout": _short(ran.stdout, most), "stderr": _short(stderr, most), "outcome": outcome}


def _short(text: str, most: int) -> str:
    text = make_readable(text)
    cut = cut_middle(text, most)
    if cut.is_whole:
        return text
    return f"{cut.head}\n[{cut.end - cut.start} characters left out: write the output to a file]\n{cut.tail}"


async def _run(state: Conversation, command: str, timeout: float | None) -> Ran:
    seconds = state.seconds(timeout)
    session = await state.session()
    try:
        result = await session.exec(command, timeout=seconds, max_output=state.limits.max_output_bytes)
    except SessionNotFound:
        state.forget_session()
        raise ToolFailed("The shell is gone. The next command gets a new one.") from None
    except SessionTerminated as error:
        if error.is_infrastructure_failure:
            raise
        state.forget_session()
        return Ran(error.output, "", error.exit_code, False, _ENDED.format(error.exit_code))
    if result.is_infrastructure_failure:
        result.check()
    return Ran(result.stdout, result.stderr, result.exit_code, result.timed_out, _note(result, seconds))


def _note(result: ExecResult, seconds: float) -> str:
    notes = [_end(result, seconds)]
    if result.truncated:
        notes.append("The middle of the output was not kept: write it to a file and read that.")
    if result.session_restarted:
        notes.append("The shell had to be replaced: variables and the directory may be older.")
    notes += map(_denial, result.denied[:5])
    return "\n".join(f"[{note}]" for note in notes if note)


def _denial(denied: NetworkDenial) -> str:
    if denied.rule is None:
        return f"Network: {denied.reason}."
    return f"The network policy refused {denied.host}: ask the user to allow it."


def _end(result: ExecResult, seconds: float) -> str:
    match result.outcome:
        case Outcome.EXITED:
            return f"exit code {result.exit_code}" if result.exit_code else ""
        case Outcome.TIMED_OUT:
            return (
                f"ended after {seconds:g} s, with everything it started; the shell lives on. "
                "Give a longer timeout, or use start_process for what takes long."
            )
        case Outcome.OUT_OF_MEMORY:
            return "ended because memory was full: do it in smaller parts"
        case _:
            return f"{result.outcome}, exit code {result.exit_code}"
