"""A bash on a terminal of a sandbox, for SWE-ReX: exit codes, interactive programs and Ctrl-C on one shell.

Theory of operation. The prompt tells everything: it has a random name, the exit code and the number of the command, and
is set anew before each prompt, so that nothing a command does to PS1 or to the echo lasts. A command is written to a
file and sourced, so that its quotes, line breaks and here-documents mean what they mean in a file. A prompt with an
older number belongs to a command that somebody has stopped waiting for, and is passed over.
"""

import asyncio
import re
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import Final

from swerex.exceptions import BashIncorrectSyntaxError, CommandTimeoutError, NoExitCodeError, NonZeroExitCodeError
from swerex.runtime.abstract import BashAction, BashInterruptAction, BashObservation

from cove.api import AsyncSandbox, Terminal, TerminalConnection
from cove.core.identifier import new_identifier
from cove.errors import CoveError
from cove.model import Exit, Output
from cove.tasks import Tasks, settled

_CONTROL: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[0-Z\\^-~]|\x07")
# What may go on in the next piece: a line's end, or an escape sequence.
_PARTIAL: Final = re.compile(r"(?:\r|\x1b(?:\[[0-?]{0,30}[ -/]{0,8})?)\Z")
_LINE_END: Final = re.compile(r"\r+\n")
_MOST_CHARACTERS: Final = 16 << 20
_CUT: Final = "[the beginning of the output was left out]\n"
_BASH: Final = ("bash", "--noediting", "-i")
_INTERRUPT, _SUSPEND = "\x03", "\x1a"


class BashSession:
    """Opened by `start`, ended by `close`. `_text` is what the terminal has shown and nobody has taken."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self._name = new_identifier()
        self._prompt = re.compile(rf"<{self._name}:(\d+):(\d*)>")
        self._script = f"/tmp/.swerex-{self._name}"
        self._number = 0
        self._text = ""
        self._shown = asyncio.Event()
        self._is_over = False
        self._pumping = Tasks()
        self._terminal: Terminal | None = None
        self._connection: TerminalConnection | None = None

    async def start(self, sources: list[str], timeout: float) -> str:
        """Start the shell and source these files; returns what they print."""
        self._terminal = await self._sandbox.terminal(shell=_BASH, cols=1000)
        connection = self._connection = self._terminal.connect(lossless=True)
        await connection.open()
        self._pumping.start(self._pump(connection))
        prompt = f"PS1='<{self._name}:$?:$__swerex>'; stty -echo 2> /dev/null"
        setting = f"PS2= PS0= __swerex=0 PROMPT_COMMAND={_quoted(prompt)}"
        await connection.write(f"stty -echo; {setting}\n")
        await self._wait_prompt(0, timeout + 10)
        if not sources:
            return ""
        return (await self._run("\n".join(f"source {_quoted(each)}" for each in sources), timeout))[0]

    async def close(self) -> None:
        """End the shell and everything that it started. Idempotent."""
        await settled(self._close())

    async def _close(self) -> None:
        await self._pumping.aclose()
        if self._connection is not None:
            await self._connection.close()
        if self._terminal is not None:
            with suppress(CoveError):  # it went with the sandbox
                await self._terminal.destroy()

    async def run(self, action: BashAction) -> BashObservation:
        """Run a command, or type to an interactive program."""
        if action.is_interactive_command or action.is_interactive_quit:
            return await self._type(action)
        await self._check_syntax(action.command)
        output, exit_code = await self._run(action.command, action.timeout, action.expect)
        if action.check == "ignore":
            return BashObservation(output=output, exit_code=None)
        if action.check == "raise" and exit_code:
            raise NonZeroExitCodeError(_failure(action, exit_code, output))
        return BashObservation(output=output, exit_code=exit_code)

    async def _check_syntax(self, command: str) -> None:
        result = await self._sandbox.exec(["bash", "-n"], stdin=command + "\n", timeout=30)
        if not result.ok:
            raise BashIncorrectSyntaxError(
                f"bash cannot read {command!r}: {result.stderr}",
                extra_info={"bash_stdout": result.stdout, "bash_stderr": result.stderr},
            )

    async def _run(self, command: str, timeout: float | None, expect: list[str] | None = None) -> tuple[str, int]:
        """Source a command; returns its output and its exit code. After a timeout it goes on until interrupted."""
        await self._sandbox.files.write(self._script, command + "\n")
        self._number += 1
        await self._write(f"__swerex={self._number}; . {self._script}\n")
        return await self._expect(self._number, timeout, expect or [], command)

    async def _expect(self, number: int, timeout: float | None, expect: list[str], command: str) -> tuple[str, int]:
        try:
            async with asyncio.timeout(timeout):
                output, found = await self._until(expect, number)
        except TimeoutError:
            raise CommandTimeoutError(f"timeout after {timeout} seconds while running command {command!r}") from None
        return output, int(found[1]) if isinstance(found, re.Match) else 0

    async def _wait_prompt(self, number: int, timeout: float) -> str:
        return (await self._expect(number, timeout, [], "the start of the shell"))[0]

    async def _type(self, action: BashAction) -> BashObservation:
        """Type a line to what runs; it is over when one of the expected texts, or a prompt, is shown."""
        await self._write(action.command.rstrip("\n") + "\n")
        try:
            async with asyncio.timeout(action.timeout):
                output, found = await self._until(action.expect, None)
        except TimeoutError:
            raise CommandTimeoutError(
                f"timeout after {action.timeout} seconds while running command {action.command!r}"
            ) from None
        output = output.lstrip().removeprefix(action.command.strip()).strip()
        return BashObservation(output=output, exit_code=0, expect_string=found if isinstance(found, str) else "")

    async def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """Press Ctrl-C until there is a prompt; where that is ignored, stop the job and kill it.

        What the shell tells of a killed job comes with the next command, as in SWE-ReX's own runtime.
        """
        output = ""
        for _ in range(action.n_retry):
            await self._write(_INTERRUPT)
            with suppress(TimeoutError):
                async with asyncio.timeout(action.timeout):
                    shown, _ = await self._until(action.expect, None)
                    return BashObservation(output=(output + shown).strip(), exit_code=0)
        await self._write(_SUSPEND)
        try:
            async with asyncio.timeout(max(action.timeout, 5.0)):
                output += (await self._until(action.expect, None))[0]
                await self._write("kill -9 %+\n")
                self._text = (await self._until(action.expect, None))[0] + self._text
        except TimeoutError:
            raise CommandTimeoutError("the session cannot be interrupted: close it and create another") from None
        return BashObservation(output=output.strip(), exit_code=0)

    async def _write(self, text: str) -> None:
        if self._is_over or self._connection is None:
            raise NoExitCodeError("the session's shell has ended: close it and create another")
        await self._connection.write(text)

    async def _until(self, expect: list[str], number: int | None) -> tuple[str, "str | re.Match[str]"]:
        """Take what is shown until one of these texts, or the prompt of that command (None: any)."""
        while True:
            if (found := self._find(expect, number)) is not None:
                return found
            if self._is_over:
                raise NoExitCodeError(f"the session's shell has ended: {self._text[-500:]!r}")
            self._shown.clear()
            await self._shown.wait()

    def _find(self, expect: list[str], number: int | None) -> tuple[str, "str | re.Match[str]"] | None:
        prompts = [each for each in self._prompt.finditer(self._text) if number is None or each[2] == str(number)]
        ends: list[tuple[int, int, str | re.Match[str]]] = [(each.start(), each.end(), each) for each in prompts[:1]]
        shown = [(self._text.find(text), text) for text in expect]
        ends += [(at, at + len(text), text) for at, text in shown if at >= 0]
        if not ends:
            return None
        start, end, found = min(ends, key=lambda each: each[0])
        taken, self._text = self._text[:start], self._text[end:]
        return self._prompt.sub("", taken), found

    async def _pump(self, connection: TerminalConnection) -> None:
        decoder, rest = getincrementaldecoder("utf-8")("backslashreplace"), ""
        async for event in connection:
            if isinstance(event, Output):
                text = rest + decoder.decode(event.data)
                partial = _PARTIAL.search(text)
                rest = partial[0] if partial is not None else ""
                self._take(_CONTROL.sub("", _LINE_END.sub("\n", text.removesuffix(rest))))
            elif isinstance(event, Exit):
                break
        self._is_over = True
        self._shown.set()

    def _take(self, text: str) -> None:
        self._text += text
        if len(self._text) > _MOST_CHARACTERS:
            self._text = _CUT + self._text[-_MOST_CHARACTERS // 2 :]
        self._shown.set()


def _failure(action: BashAction, exit_code: int, output: str) -> str:
    message = f"Command {action.command!r} failed with exit code {exit_code}. Here is the output:\n{output!r}"
    return f"{action.error_msg}: {message}" if action.error_msg else message


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
