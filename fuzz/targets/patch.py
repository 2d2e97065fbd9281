"""V4A patches of models: applied or refused within the budget, and what is added is there."""

from collections.abc import Iterator

from cove.core.v4a_patch import AddFile, UpdateFile, apply_hunks, parse_added, parse_hunks, parse_patch
from cove.errors import ValidationFailed


def check(data: bytes) -> None:
    """The file comes before the patch, with a NUL between them."""
    first, _, second = data.partition(b"\0")
    content, text = first.decode("utf-8", "replace"), second.decode("utf-8", "replace")
    for parse in (parse_hunks, parse_added):
        try:
            parse(text)
        except ValidationFailed:
            continue
    try:
        files = parse_patch(text)
    except ValidationFailed:
        return
    for file in files:
        assert file.path.strip() == file.path != ""
        if isinstance(file, AddFile):
            assert file.content == "" or file.content.endswith("\n")
        elif isinstance(file, UpdateFile):
            _check_update(content, file)


def _check_update(content: str, file: UpdateFile) -> None:
    try:
        changed = apply_hunks(content, file.hunks)
    except ValidationFailed:
        return
    added = sum(kind == "+" for hunk in file.hunks for kind, _ in hunk.edits)
    removed = sum(kind == "-" for hunk in file.hunks for kind, _ in hunk.edits)
    assert len(_lines(changed)) == len(_lines(content)) + added - removed


def _lines(content: str) -> list[str]:
    return content.removesuffix("\n").split("\n") if content else []


def seeds() -> Iterator[bytes]:
    """Patches that add, delete, move and update, with anchors and ends."""
    body = b"a\nb\nc\nb\n\0"
    yield body + b"*** Begin Patch\n*** Update File: f\n@@ a\n b\n-c\n+d\n*** End Patch"
    yield body + b"*** Begin Patch\n*** Update File: f\n*** Move to: g\n@@\n-b\n*** End of File\n*** End Patch"
    yield body + b"*** Begin Patch\n*** Add File: n\n+x\n*** Delete File: o\n*** End Patch"
    yield body + b"*** Begin Patch\n*** Update File: f\n@@ -1,2 +1,2 @@\n a \n+z\n\n*** End Patch"
