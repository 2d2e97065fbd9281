"""Tools for files: read_file, write_file, edit_file, list_files, search_files."""

from contextlib import aclosing
from typing import Final

from cove.api import Files
from cove.model import FileInfo, FileKind
from cove.tools.arguments import EditFile, ListFiles, ReadFile, SearchFiles, WriteFile
from cove.tools.conversation import Conversation
from cove.tools.result import MOST_IMAGE_BYTES, ToolFailed, ToolImage, ToolResult, image_type

MOST_TEXT_BYTES: Final = 16 << 20
MOST_ENTRIES: Final = 2000
_MOST_MATCHES: Final = 500
_UNWANTED: Final = ("/.git/", "/node_modules/")
_SNIFFED_BYTES: Final = 8192


async def read_file(state: Conversation, arguments: ReadFile) -> ToolResult:
    """Read lines of a text, or an image."""
    data = await read_bytes(await state.files(), arguments.path)
    kind = image_type(data)
    if kind is not None:
        return show_image(arguments.path, data, kind)
    lines = decode_text(arguments.path, data).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    first = arguments.start_line
    if first > max(len(lines), 1):
        raise ToolFailed(f"{arguments.path} has {len(lines)} lines: start_line must not be beyond them")
    shown = lines[first - 1 :][: arguments.line_count]
    last = first + len(shown) - 1
    note = f"\n[lines {first} to {last} of {len(lines)}]" if len(shown) < len(lines) else ""
    return ToolResult(text=state.fit("\n".join(shown) + note) or "(the file is empty)")


async def write_file(state: Conversation, arguments: WriteFile) -> ToolResult:
    """Write a file as a whole."""
    content = arguments.content.encode()
    await (await state.files()).write(arguments.path, content)
    return ToolResult(text=f"{arguments.path} is written: {len(content)} bytes.")


async def edit_file(state: Conversation, arguments: EditFile) -> ToolResult:
    """Replace a text."""
    files = await state.files()
    count = await files.replace(arguments.path, arguments.old, arguments.new, count=None if arguments.all else 1)
    return ToolResult(text=f"{arguments.path} is changed in {count} place{'' if count == 1 else 's'}.")


async def list_files(state: Conversation, arguments: ListFiles) -> ToolResult:
    """List a directory."""
    entries = await (await state.files()).list(arguments.path, recursive=arguments.recursive)
    wanted = [entry for entry in entries if not arguments.recursive or not _is_unwanted(entry.path)]
    lines = [describe_entry(entry) for entry in wanted[:MOST_ENTRIES]]
    if len(wanted) > MOST_ENTRIES:
        lines.append(f"[{len(wanted) - MOST_ENTRIES} more: list the directories one by one]")
    return ToolResult(text=state.fit("\n".join(lines)) or "(the directory is empty)")


async def search_files(state: Conversation, arguments: SearchFiles) -> ToolResult:
    """Search the text files below a path."""
    files = await state.files()
    matches = await files.search(arguments.pattern, arguments.path, glob=arguments.glob, limit=_MOST_MATCHES)
    lines = [f"{match.path}:{match.line_number}: {match.line}" for match in matches]
    if len(matches) == _MOST_MATCHES:
        lines.append(f"[only the first {_MOST_MATCHES} matches: make the pattern or the path narrower]")
    return ToolResult(text=state.fit("\n".join(lines)) or "(nothing matches)")


def describe_entry(entry: FileInfo) -> str:
    """Return one line for an entry: a directory has a slash, a link its target, a file its size."""
    match entry.kind:
        case FileKind.DIRECTORY:
            return entry.path + "/"
        case FileKind.SYMLINK:
            return f"{entry.path} -> {entry.target}"
        case FileKind.FILE:
            return f"{entry.path}  {entry.size}"
        case _:
            return f"{entry.path}  (special)"


def _is_unwanted(path: str) -> bool:
    return any(part in path for part in _UNWANTED)


def show_image(path: str, data: bytes, kind: str) -> ToolResult:
    """Give an image, if it is not too large for a model."""
    if len(data) > MOST_IMAGE_BYTES:
        raise ToolFailed(
            f"{path} is an image of {len(data)} bytes: make it smaller than {MOST_IMAGE_BYTES} bytes first"
        )
    return ToolResult(text=f"{path}: {kind}, {len(data)} bytes", images=(ToolImage(data=data, media_type=kind),))


async def read_bytes(files: Files, path: str) -> bytes:
    """Read a file of a bounded size."""
    data = bytearray()
    async with aclosing(files.read_stream(path)) as chunks:
        async for chunk in chunks:
            data += chunk
            if len(data) > MOST_TEXT_BYTES:
                raise ToolFailed(f"{path} is over {MOST_TEXT_BYTES >> 20} MiB: use run_command with head, tail or grep")
    return bytes(data)


def decode_text(path: str, data: bytes) -> str:
    """Decode a text file; raises ToolFailed for binary ones."""
    if b"\0" in data[:_SNIFFED_BYTES]:
        raise ToolFailed(f"{path} is a binary file of {len(data)} bytes: look at it with run_command, file or xxd")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFailed(f"{path} is not UTF-8: convert it with run_command, for example with iconv") from None


async def read_text(files: Files, path: str) -> str:
    """Read a text file of a bounded size."""
    return decode_text(path, await read_bytes(files, path))
