"""`cove run`: code in a throw-away sandbox, with what it prints and what it results in."""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, assert_never

import typer

from cove import AsyncSandbox
from cove.cli.options import EnvOption, IsolationOption, MountOption, NetworkOption, make_spec, parse_variables
from cove.cli.signals import until_signal
from cove.cli.streams import BROKEN_PIPE, STDERR, STDOUT, Streams, leave
from cove.errors import ContextCrashed, ValidationFailed
from cove.model import CodeEvent, Display, Done, Failure, Isolation, Network, Outcome, Result, SandboxSpec, Text

_DESCRIPTORS = {"stdout": STDOUT, "stderr": STDERR}
_LANGUAGES = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".ts": "typescript"}
_CODE_FAILED = 1
_TIMED_OUT = 124


def run(
    file: Annotated[Path | None, typer.Argument(help="A program: its suffix tells the language.")] = None,
    code: Annotated[str | None, typer.Option("-c", "--code", help="The code itself, instead of a file.")] = None,
    language: Annotated[str | None, typer.Option(help="python, javascript or typescript.")] = None,
    images: Annotated[Path | None, typer.Option(metavar="DIR", help="Write images of results there.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Interrupt the code after so many seconds: 124.")] = None,
    env: EnvOption = None,
    network: NetworkOption = Network.NONE,
    mount: MountOption = None,
    isolation: IsolationOption = Isolation.BUBBLEWRAP,
) -> None:
    """Run code in a throw-away sandbox.

    What it prints comes while it runs; results follow as text. The exit code is 1 when the code fails, 124 when
    the time is up, 125 when Cove itself failed.

    cove run -c '6 * 7'

    cove run plot.py --images .
    """
    chosen, text = _read(file, code, language)
    if isolation is Isolation.NONE:
        print("cove: no isolation: this code can do whatever you can", file=sys.stderr, flush=True)
    work = _run(text, chosen, make_spec(isolation, network, mount), parse_variables(env), timeout, images)
    leave(asyncio.run(until_signal(work)))


def _read(file: Path | None, code: str | None, language: str | None) -> tuple[str, str]:
    """The language and the code."""
    if (file is None) == (code is None):
        raise ValidationFailed("name a file, or give the code with -c: one of the two")
    if file is None:
        assert code is not None
        return language or "python", code
    chosen = language or _LANGUAGES.get(file.suffix)
    if chosen is None:
        raise ValidationFailed(f"{file}: the suffix does not tell the language: add --language")
    try:
        return chosen, file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationFailed(f"{file} cannot be read: {error}") from error


async def _run(
    code: str, language: str, spec: SandboxSpec, env: dict[str, str], timeout: float | None, images: Path | None
) -> int:
    show = _Show(Streams(), images)
    async with AsyncSandbox.create(spec=spec) as sandbox:
        context = await sandbox.create_code_context(language, env=env, timeout=timeout)
        try:
            async with aclosing(context.stream(code)) as events:
                async for event in events:
                    await show.event(event)
        except BrokenPipeError:
            return BROKEN_PIPE
        except ContextCrashed as error:
            await show.error(f"cove: the code ended its own process (exit code {error.details['exit_code']})\n")
            return _CODE_FAILED
    return show.exit_code


class _Show:
    """Prints what comes of the code; the exit code follows from it."""

    def __init__(self, streams: Streams, images: Path | None) -> None:
        self._streams = streams
        self._images = images
        self._written = 0
        self.exit_code = 0

    async def event(self, event: CodeEvent) -> None:
        """One event."""
        match event:
            case Text():
                await self._streams.write(_DESCRIPTORS[event.stream], event.text.encode("utf-8", "replace"))
            case Display():
                await self._show_result(event.result)
            case Failure():
                self.exit_code = _CODE_FAILED
                await self.error(event.error.traceback.rstrip("\n") + "\n")
            case Done():
                await self._end(event)
            case _:
                assert_never(event)

    async def error(self, text: str) -> None:
        """On standard error."""
        await self._streams.write(STDERR, text.encode("utf-8", "replace"))

    async def _show_result(self, result: Result) -> None:
        text = result.text or result.markdown or result.latex or result.svg or result.html
        if text is not None:
            await self._streams.write(STDOUT, text.encode("utf-8", "replace") + b"\n")
        for suffix, data in (("png", result.png), ("jpg", result.jpeg), ("svg", result.svg)):
            if self._images is not None and data is not None:
                self._written += 1
                path = self._images / f"image-{self._written}.{suffix}"
                await asyncio.to_thread(_write, path, data if isinstance(data, bytes) else data.encode())
                await self.error(f"cove: wrote {path}\n")

    async def _end(self, done: Done) -> None:
        if done.truncated:
            await self.error("cove: some output was not kept\n")
        if done.outcome is Outcome.TIMED_OUT:
            self.exit_code = _TIMED_OUT
            await self.error("cove: the time is up\n")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
