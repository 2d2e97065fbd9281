"""The text editor in its fixed shape: view, create, str_replace, insert and, in older versions, undo_edit."""

from contextlib import suppress
from typing import Final

from cove.api import Files
from cove.errors import FileError, FileNotFound, PermissionDenied
from cove.model import FileKind
from cove.tools.arguments import TextEditor
from cove.tools.conversation import Conversation
from cove.tools.files import MOST_ENTRIES, decode_text, describe_entry, read_bytes, read_text, show_image
from cove.tools.result import ToolFailed, ToolResult, image_type

_MOST_FILES: Final = 32
_MOST_UNDOS: Final = 8
_MOST_UNDO_CHARACTERS: Final = 1 << 18
_CONTEXT_LINES: Final = 4


async def edit_text(state: Conversation, arguments: TextEditor) -> ToolResult:
    """Do one command of the editor."""
    match arguments.command:
        case "view":
            return await _view(state, arguments)
        case "create":
            return await _create(state, arguments)
        case "str_replace":
            return await _replace(state, arguments)
        case "insert":
            return await _insert(state, arguments)
        case "undo_edit":
            return await _undo(state, arguments)


async def _view(state: Conversation, arguments: TextEditor) -> ToolResult:
    files = await state.files()
    path = arguments.path
    entry = await files.stat(path)
    if entry.kind is FileKind.DIRECTORY:
        return ToolResult(text=state.fit("\n".join([path, *await _tree(files, path)])))
    data = await read_bytes(files, path)
    kind = image_type(data)
    if kind is not None:
        return show_image(path, data, kind)
    lines = decode_text(path, data).split("\n")
    first, last = _range(arguments.view_range, len(lines))
    return ToolResult(text=state.fit(_numbered(lines, first, last), "view fewer lines with view_range"))


async def _tree(files: Files, top: str) -> list[str]:
    """Return a line for each entry in a directory and in the directories there, without hidden ones."""
    lines: list[str] = []
    for entry in await files.list(top, hidden=False):
        lines.append(describe_entry(entry))
        if entry.kind is FileKind.DIRECTORY and len(lines) < MOST_ENTRIES:
            with suppress(FileError, PermissionDenied):  # it may not be read, or is gone
                lines += map(describe_entry, await files.list(entry.path, hidden=False))
    if len(lines) > MOST_ENTRIES:
        lines[MOST_ENTRIES:] = [f"[{len(lines) - MOST_ENTRIES} more: view the directories one by one]"]
    return lines


def _range(wanted: list[int] | None, count: int) -> tuple[int, int]:
    match wanted:
        case None:
            return 1, count
        case [int(first), int(last)] if 1 <= first <= count and (last == -1 or first <= last):
            return first, count if last == -1 else min(last, count)
    raise ToolFailed(f"view_range must be [first, last] within the {count} lines of the file, or [first, -1]")


def _numbered(lines: list[str], first: int, last: int) -> str:
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))


async def _create(state: Conversation, arguments: TextEditor) -> ToolResult:
    if arguments.file_text is None:
        raise ToolFailed("create needs file_text, the whole content")
    files = await state.files()
    try:
        before: str | None = await read_text(files, arguments.path)
    except FileNotFound:
        before = None
    await files.write(arguments.path, arguments.file_text)
    _remember(state, arguments.path, before)
    return ToolResult(text=f"{arguments.path} is written.")


async def _replace(state: Conversation, arguments: TextEditor) -> ToolResult:
    if not arguments.old_str:
        raise ToolFailed("str_replace needs old_str, the text as it stands in the file")
    before = await read_text(await state.files(), arguments.path)
    times = before.count(arguments.old_str)
    if times != 1:
        raise ToolFailed(
            f"old_str stands in {arguments.path} {times} times, not once: "
            + ("give more lines around it" if times else "view the file and copy it exactly")
        )
    at = before.index(arguments.old_str)
    new = arguments.new_str or ""
    after = before[:at] + new + before[at + len(arguments.old_str) :]
    return await _write(state, arguments.path, before, after, before.count("\n", 0, at) + 1, new.count("\n") + 1)


async def _insert(state: Conversation, arguments: TextEditor) -> ToolResult:
    text = arguments.new_str if arguments.insert_text is None else arguments.insert_text
    if arguments.insert_line is None or text is None:
        raise ToolFailed("insert needs insert_line and insert_text")
    before = await read_text(await state.files(), arguments.path)
    lines = before.split("\n")
    most = len(lines) - (not lines[-1])
    if not 0 <= arguments.insert_line <= most:
        raise ToolFailed(f"insert_line must be from 0 to {most}, the number of lines of {arguments.path}")
    added = text.removesuffix("\n").split("\n")
    lines[arguments.insert_line : arguments.insert_line] = added
    return await _write(state, arguments.path, before, "\n".join(lines), arguments.insert_line + 1, len(added))


async def _write(state: Conversation, path: str, before: str, after: str, line: int, count: int) -> ToolResult:
    await (await state.files()).write(path, after)
    _remember(state, path, before)
    lines = after.split("\n")
    shown = _numbered(lines, max(1, line - _CONTEXT_LINES), min(len(lines), line + count - 1 + _CONTEXT_LINES))
    return ToolResult(text=state.fit(f"{path} is changed. The lines around it are now:\n{shown}"))


async def _undo(state: Conversation, arguments: TextEditor) -> ToolResult:
    steps = state.edits.get(arguments.path)
    if not steps:
        raise ToolFailed(f"there is no edit of {arguments.path} to undo")
    before = steps[-1]
    files = await state.files()
    if before is None:
        await files.remove(arguments.path)
    else:
        await files.write(arguments.path, before)
    steps.pop()
    return ToolResult(text=f"The last edit of {arguments.path} is undone.")


def _remember(state: Conversation, path: str, before: str | None) -> None:
    """Keep what a file was, of few files and not of large ones; a larger one ends what can be undone."""
    steps = state.edits.setdefault(path, [])
    state.edits.move_to_end(path)
    if before is not None and len(before) > _MOST_UNDO_CHARACTERS:
        steps.clear()
        return
    steps.append(before)
    del steps[:-_MOST_UNDOS]
    while len(state.edits) > _MOST_FILES:
        state.edits.popitem(last=False)
