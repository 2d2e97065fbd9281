"""Parse Git's machine-readable output; untrusted: code inside may have replaced git."""

import re
from collections.abc import Iterator

from cove.core.file_path import decode_path
from cove.errors import GitFailed
from cove.model import GitBranch, GitChange, GitFile, GitStatus

_CHANGES = {
    b".": GitChange.UNMODIFIED,
    b"M": GitChange.MODIFIED,
    b"T": GitChange.TYPE_CHANGED,
    b"A": GitChange.ADDED,
    b"D": GitChange.DELETED,
    b"R": GitChange.RENAMED,
    b"C": GitChange.COPIED,
    b"U": GitChange.UNMERGED,
}
# How many fields stand before the path, for a changed, a renamed and an unmerged file: git-status(1).
_FIELDS = {b"1": 8, b"2": 9, b"u": 10}
_COMMIT = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
_AHEAD_BEHIND = re.compile(rb"\+(\d{1,9}) -(\d{1,9})")
_BRANCHES = b"refs/heads/"


def parse_status(data: bytes) -> GitStatus:
    """Read records of `git status --porcelain=v2 --branch -z`."""
    records = iter(data.split(b"\0")[:-1]) if data.endswith(b"\0") else iter(())
    heads: dict[bytes, bytes] = {}
    files: list[GitFile] = []
    for record in records:
        kind, _, rest = record.partition(b" ")
        if kind == b"#":
            name, _, value = rest.partition(b" ")
            heads[name] = value
        else:
            files.append(_file(kind, rest, records))
    if b"branch.oid" not in heads or b"branch.head" not in heads:
        raise _unknown()
    ahead, behind = _ahead_behind(heads.get(b"branch.ab", b"+0 -0"))
    return GitStatus(
        branch=_unless(heads[b"branch.head"], b"(detached)"),
        commit=_commit(heads[b"branch.oid"]) if heads[b"branch.oid"] != b"(initial)" else None,
        upstream=_unless(heads.get(b"branch.upstream", b""), b""),
        ahead=ahead,
        behind=behind,
        files=tuple(files),
    )


def parse_branches(data: bytes) -> list[GitBranch]:
    """Read lines of `git for-each-ref` with the fields that `plan_branches` asks for."""
    return [_branch(line) for line in data.splitlines()]


def parse_commit(data: bytes) -> str | None:
    """Read the name of a commit; nothing is none."""
    return _commit(data.strip()) if data.strip() else None


def _file(kind: bytes, rest: bytes, records: Iterator[bytes]) -> GitFile:
    if kind == b"?":
        return GitFile(path=decode_path(rest), staged=GitChange.UNMODIFIED, unstaged=GitChange.UNTRACKED)
    fields = rest.split(b" ", _FIELDS.get(kind, 1) - 1)
    if kind not in _FIELDS or len(fields) != _FIELDS[kind] or len(fields[0]) != 2:
        raise _unknown()
    staged, unstaged = (_CHANGES.get(letter) for letter in (fields[0][:1], fields[0][1:]))
    old = next(records, None) if kind == b"2" else None
    if staged is None or unstaged is None or (kind == b"2" and old is None):
        raise _unknown()
    return GitFile(
        path=decode_path(fields[-1]),
        staged=staged,
        unstaged=unstaged,
        old_path=None if old is None else decode_path(old),
        is_conflicted=kind == b"u",
    )


def _branch(line: bytes) -> GitBranch:
    match line.split(b"\0"):
        case [mark, name, commit, upstream] if name.startswith(_BRANCHES):
            return GitBranch(
                name=decode_path(name.removeprefix(_BRANCHES)),
                commit=_commit(commit),
                is_current=mark == b"*",
                upstream=_unless(upstream, b""),
            )
    raise _unknown()


def _ahead_behind(value: bytes) -> tuple[int, int]:
    found = _AHEAD_BEHIND.fullmatch(value)
    if found is None:
        raise _unknown()
    return int(found[1]), int(found[2])


def _commit(value: bytes) -> str:
    if not _COMMIT.fullmatch(value):
        raise _unknown()
    return value.decode()


def _unless(value: bytes, nothing: bytes) -> str | None:
    return None if value == nothing else decode_path(value)


def _unknown() -> GitFailed:
    return GitFailed("what git printed is not what git prints: the `git` inside is another program")
