"""The tool apply_patch: the V4A format as a whole patch, or one operation on one file."""

from dataclasses import dataclass
from typing import Final

from cove.api import Files
from cove.core.v4a_patch import AddFile, DeleteFile, PatchedFile, UpdateFile, apply_hunks, parse_patch
from cove.errors import RequestError, ValidationFailed
from cove.local.threads import in_thread
from cove.tools.arguments import ApplyPatch
from cove.tools.conversation import Conversation
from cove.tools.files import read_text
from cove.tools.result import ToolFailed, ToolResult

_MOST_FILES: Final = 200


@dataclass(frozen=True, slots=True)
class _Write:
    """A file to write, and where it was when that was elsewhere."""

    path: str
    content: str
    old_path: str | None
    word: str


async def apply_patch(state: Conversation, arguments: ApplyPatch) -> ToolResult:
    """Apply a whole patch."""
    return await apply_files(state, await in_thread(parse_patch, arguments.patch))


async def apply_files(state: Conversation, patched: tuple[PatchedFile, ...]) -> ToolResult:
    """Compute every change before the first file is written, so that a patch which does not fit changes nothing."""
    if len(patched) > _MOST_FILES:
        raise ToolFailed(f"a patch changes at most {_MOST_FILES} files: give it in parts")
    files = await state.files()
    _check_paths(patched)
    changes = [await _prepare(files, each) for each in patched]
    for number, change in enumerate(changes):
        try:
            await _apply(files, change)
        except RequestError as error:
            done = ", ".join(_path_of(each) for each in changes[:number]) or "none"
            raise ToolFailed(f"{error.message}. Of the files of this patch these are changed: {done}") from None
    return ToolResult(text=state.fit("\n".join(map(_describe, changes))))


async def _apply(files: Files, change: "_Write | str") -> None:
    if isinstance(change, str):
        await files.remove(change)
        return
    await files.write(change.path, change.content)
    if change.old_path is not None:
        await files.remove(change.old_path)


def _path_of(change: "_Write | str") -> str:
    return change if isinstance(change, str) else change.path


def _check_paths(patched: tuple[PatchedFile, ...]) -> None:
    paths = [each.path for each in patched]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ToolFailed(f"{twice} has two sections: write one, with several hunks")


async def _prepare(files: Files, change: PatchedFile) -> "_Write | str":
    match change:
        case AddFile(path, content):
            if await files.exists(path):
                raise ToolFailed(f"{path} is there already: use *** Update File")
            return _Write(path, content, None, "added")
        case DeleteFile(path):
            await files.stat(path)
            return path
        case UpdateFile(path, hunks, move_to):
            if move_to is not None and await files.exists(move_to):
                raise ToolFailed(f"{move_to} is there already: nothing is moved over it")
            before = await read_text(files, path)
            try:
                after = await in_thread(apply_hunks, before, hunks)
            except ValidationFailed as error:
                raise ToolFailed(f"{path}: {error.message}") from None
            return _Write(move_to or path, after, path if move_to else None, "changed")


def _describe(change: "_Write | str") -> str:
    if isinstance(change, str):
        return f"{change} is deleted."
    moved = f", and was {change.old_path} before" if change.old_path else ""
    return f"{change.path} is {change.word}{moved}."
