"""`cove run`: run code in a sandbox, and show what it prints and what it results in."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, assert_never

import typer

from cove.api import AsyncSandbox, CodeContext
from cove.cli.connection import InOption, KeyOption, PlaceUrlOption, Workplace, choose_workplace
from cove.cli.descriptors import BROKEN_PIPE, STDERR, STDOUT, say
from cove.cli.options import EnvOption, Shape, parse_variables, shaped
from cove.cli.signals import finish
from cove.cli.streams import DESCRIPTORS, Streams
from cove.errors import ContextAlreadyExists, ContextCrashed, ContextNotFound, ValidationFailed
from cove.model import CodeEvent, Display, Done, Failure, Outcome, Result, Text

_LANGUAGES = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".ts": "typescript"}
_STANDARD_INPUT = Path("-")
_CODE_FAILED = 1
_TIMED_OUT = 124
# Images and bytes that one run may write below --images.
_MOST_IMAGES, _MOST_IMAGES_BYTES = 100, 256 << 20


@shaped
def run(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A program: its suffix tells the language. `-` is standard input."),
    ] = None,
    code: Annotated[
        str | None, typer.Option("-c", "--code", metavar="CODE", help="The code itself, instead of a file.")
    ] = None,
    language: Annotated[str | None, typer.Option(metavar="LANGUAGE", help="python, javascript or typescript.")] = None,
    images: Annotated[Path | None, typer.Option(metavar="DIR", help="Write images of results there.")] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Interrupt the code after so many seconds: exit code 124.")
    ] = None,
    env: EnvOption = None,
    inside: InOption = None,
    context: Annotated[
        str | None, typer.Option(metavar="ID", help="With --in: a context that keeps its state; made if not there.")
    ] = None,
    *,
    shape: Shape,
    url: PlaceUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Run code in a throw-away sandbox, or with --in in one of a server.

    What it prints comes while it runs; results follow as text. The exit code is 1 when the code fails, 124 when
    the time is up, 125 when Cove itself failed. With --context what one run defines, the next one finds.

    cove run -c '6 * 7'

    cove run plot.py --images .

    cove run --in my-sandbox --context notebook -c 'import pandas as pd'
    """
    if context is not None and inside is None:
        raise ValidationFailed("--context names a context of a sandbox that stays: say which with --in")
    workplace = choose_workplace(inside, url, api_key, shape)
    program = _read(file, code, language)
    if images is not None:
        _make_directory(images)
    finish(_run(workplace, program, context, parse_variables(env), timeout, images))


@dataclass(frozen=True, slots=True)
class _Program:
    """Code, and the language that it is known to be in."""

    code: str
    language: str | None


def _read(file: Path | None, code: str | None, language: str | None) -> _Program:
    if (file is None) == (code is None):
        raise ValidationFailed("name a file, or give the code with -c: one of the two")
    if file is None:
        assert code is not None
        return _Program(code, language)
    if file == _STANDARD_INPUT:
        return _Program(sys.stdin.read(), language)
    chosen = language or _LANGUAGES.get(file.suffix)
    if chosen is None:
        raise ValidationFailed(f"{file}: the suffix does not tell the language: add --language")
    try:
        return _Program(file.read_text(encoding="utf-8"), chosen)
    except OSError as error:
        raise ValidationFailed(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValidationFailed(f"{file} cannot be read: {error}") from error


def _make_directory(path: Path) -> None:
    """Before the code runs: what it has computed is not lost for want of a place."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValidationFailed(f"--images {path}: {error.strerror}: name a directory that you can write") from error


async def _run(
    workplace: Workplace,
    program: _Program,
    name: str | None,
    env: dict[str, str],
    timeout: float | None,
    images: Path | None,
) -> int:
    show = _Show(Streams(), images)
    async with workplace.open() as sandbox, _open_context(sandbox, name, program.language, env) as context:
        try:
            async with aclosing(context.stream(program.code, timeout=timeout)) as events:
                async for event in events:
                    await show.event(event)
        except BrokenPipeError:
            return BROKEN_PIPE
        except ContextCrashed as error:
            say(f"the code ended its own process (exit code {error.details['exit_code']})")
            await context.delete()  # it is of no use to anybody, and keeps its name
            return _CODE_FAILED
    return show.exit_code


@asynccontextmanager
async def _open_context(
    sandbox: AsyncSandbox, name: str | None, language: str | None, env: dict[str, str]
) -> AsyncIterator[CodeContext]:
    """The one with that name, which stays; without a name, one for this run only."""
    if name is not None:
        yield await _get_or_create(sandbox, name, language, env)
        return
    context = await sandbox.create_code_context(language or "python", env=env)
    try:
        yield context
    finally:
        await context.delete()


async def _get_or_create(sandbox: AsyncSandbox, name: str, language: str | None, env: dict[str, str]) -> CodeContext:
    try:
        context = await sandbox.get_code_context(name)
    except ContextNotFound:
        try:
            return await sandbox.create_code_context(language or "python", id=name, env=env)
        except ContextAlreadyExists:  # somebody else made it meanwhile
            context = await sandbox.get_code_context(name)
    if language not in (None, context.language):
        raise ValidationFailed(f"context {name} speaks {context.language}, not {language}")
    if env:
        raise ValidationFailed(f"context {name} is there already: --env is for when it is made")
    return context


class _Show:
    """Prints what comes of the code; the exit code follows from it."""

    def __init__(self, streams: Streams, images: Path | None) -> None:
        self._streams = streams
        self._images = None if images is None else _Images(images)
        self.exit_code = 0

    async def event(self, event: CodeEvent) -> None:
        """Show one event."""
        match event:
            case Text():
                await self._streams.write(DESCRIPTORS[event.stream], event.text.encode("utf-8", "replace"))
            case Display():
                await self._show_result(event.result)
            case Failure():
                self.exit_code = _CODE_FAILED
                text = event.error.traceback.rstrip("\n") + "\n"
                await self._streams.write(STDERR, text.encode("utf-8", "replace"))
            case Done():
                self._end(event)
            case _:
                assert_never(event)

    async def _show_result(self, result: Result) -> None:
        text = result.text or result.markdown or result.latex or result.svg or result.html
        if text is not None:
            await self._streams.write(STDOUT, text.encode("utf-8", "replace") + b"\n")
        if self._images is not None:
            await asyncio.to_thread(self._images.write, result)

    def _end(self, done: Done) -> None:
        if done.truncated:
            say("some output was not kept")
        if done.outcome is Outcome.TIMED_OUT:
            self.exit_code = _TIMED_OUT
            say("the time is up")


class _Images:
    """The files of one run: not more of them, and not larger ones, than somebody would look at."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._bytes = 0
        self._is_full = False

    def write(self, result: Result) -> None:
        """Write what the result has of images. Blocks."""
        for suffix, image in (("png", result.png), ("jpg", result.jpeg), ("svg", result.svg)):
            if image is None or self._is_full:
                continue
            data = image if isinstance(image, bytes) else image.encode("utf-8", "replace")
            self._is_full = self._count == _MOST_IMAGES or self._bytes + len(data) > _MOST_IMAGES_BYTES
            if self._is_full:
                say(f"no more images are written: at most {_MOST_IMAGES}, {_MOST_IMAGES_BYTES >> 20} MiB together")
            else:
                self._count += 1
                self._bytes += len(data)
                self._write(self._directory / f"image-{self._count}.{suffix}", data)

    def _write(self, path: Path, data: bytes) -> None:
        """Anew, so that a link which code inside may have put there is not followed."""
        try:
            path.unlink(missing_ok=True)
            with open(path, "xb") as file:
                file.write(data)
        except OSError as error:
            say(f"{path} was not written: {error.strerror}")
        else:
            say(f"wrote {path}")
