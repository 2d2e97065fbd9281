"""The errand: one long file operation in a process of its own, `errand.pyc DIRECTORY VERB ARGUMENTS…`.

It answers on standard output: messages of NUL-separated fields, each after its length as four bytes. The last one is
`done`, `error NUMBER PATH` (errno), `refused REASON` or `toomany REASON`. Archives go through descriptor 0.
"""

from __future__ import annotations

import _signal
import errno
import os
import sys

if __name__ == "__main__":
    # Inside a sandbox these packages are all there is of Cove, in one directory.
    sys.modules["cove"] = sys.modules["cove.agent"] = sys.modules["cove.archive"] = package = type(sys)("cove")
    package.__path__ = sys.argv[1:2]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cove.agent.pattern import Filter

FLUSH_BYTES = 1 << 16
# The runtime takes no more: see `runtime.errand`.
MOST_BYTES = 30 << 20
SEARCH_SECONDS = 60
ARCHIVE = 0
OUTPUT = 1


class TooMany(Exception):
    """More than a caller can take; the text says what to do."""


class Answer:
    """The writer of messages; few large writes."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.size = 0
        self.total = 0

    def say(self, *fields: bytes) -> None:
        message = b"\0".join(fields)
        self.waiting.append(len(message).to_bytes(4, "big") + message)
        self.size += 4 + len(message)
        if self.size > FLUSH_BYTES:
            self.flush()

    def list(self, *fields: bytes) -> None:
        """Say one of many."""
        self.total += 4 + sum([len(field) + 1 for field in fields])
        if self.total > MOST_BYTES:
            raise TooMany("more than %d MiB of paths and lines are found: look for less at once" % (MOST_BYTES >> 20))
        self.say(*fields)

    def flush(self) -> None:
        data = b"".join(self.waiting)
        self.waiting.clear()
        self.size = 0
        while data:
            data = data[os.write(OUTPUT, data) :]


def list_tree(answer: Answer, path: bytes, hidden: bytes, deep: bytes = b"1") -> None:
    """List every entry below a directory, or those in it alone."""
    from cove.agent import tree

    for mode, size, modified, relative, target in tree.entries(path, hidden == b"1", deep == b"1"):
        answer.list(b"entry", mode, size, modified, relative, target)


def glob(answer: Answer, path: bytes, pattern: bytes) -> None:
    """Find the paths that match a pattern."""
    from cove.agent import tree

    for found in tree.glob(path, pattern):
        answer.list(b"path", found)


def search(answer: Answer, path: bytes, expression: bytes, pattern: bytes, limit: bytes) -> None:
    """Search for lines that match an expression."""
    from cove.agent import tree

    # signal(7): the engine looks for signals from time to time.
    _signal.signal(_signal.SIGVTALRM, give_up)
    _signal.setitimer(_signal.ITIMER_VIRTUAL, SEARCH_SECONDS)
    for fields in tree.search(path, expression, pattern, int(limit)):
        answer.list(b"match", *fields)


def give_up(number: int, frame: object) -> None:
    """End a search whose expression takes for ever."""
    raise TooMany("the search takes more than %d s: make the expression simpler, or look at less" % SEARCH_SECONDS)


def digest(answer: Answer, path: bytes, recursive: bytes, includes: bytes, *patterns: bytes) -> None:
    """Fingerprint a tree."""
    from cove.agent import fingerprint

    answer.say(b"digest", fingerprint.digest(path, recursive == b"1", make_filter(includes, patterns)))


def copy(answer: Answer, source: bytes, destination: bytes) -> None:
    """Copy a file or a tree."""
    from cove.agent import tree

    tree.copy(source, destination)


def move(answer: Answer, source: bytes, destination: bytes) -> None:
    """Move to another file system."""
    from cove.agent import tree

    if os.path.islink(source):
        os.symlink(os.readlink(source), destination)
        os.unlink(source)
        return
    tree.copy(source, destination)
    if os.path.isdir(source):
        remove(answer, source)
    else:
        os.unlink(source)


def remove(answer: Answer, path: bytes) -> None:
    """Remove a directory and all below it."""
    from cove.archive.remove_tree import remove_tree

    if not os.path.isdir(os.path.join(path, b"")) or os.path.islink(path):
        os.lstat(path)
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
    remove_tree(os.fsdecode(path))


def pack(answer: Answer, path: bytes, most_bytes: bytes, most_entries: bytes, *excluded: bytes) -> None:
    """Pack a directory, without some paths below it."""
    from cove.archive.stream import Budget, Stream, pack

    left_out = {tuple(part for part in each.split(b"/") if part not in (b"", b".")) for each in excluded}
    pack(path, Stream(ARCHIVE), Budget(int(most_bytes), int(most_entries)), left_out)


def save(answer: Answer, path: bytes, most_bytes: bytes, most_entries: bytes, gitignore: bytes) -> None:
    """Pack a directory, without what Git ignores there if that is asked for."""
    from cove.agent.ignored import ignored_paths
    from cove.archive.stream import Budget, Stream, pack

    left_out = ignored_paths(path) if gitignore == b"1" else set()
    pack(path, Stream(ARCHIVE), Budget(int(most_bytes), int(most_entries)), left_out)


def unpack(
    answer: Answer,
    path: bytes,
    most_bytes: bytes,
    most_entries: bytes,
    lenient: bytes = b"0",
    replace: bytes = b"0",
) -> None:
    """Unpack an archive, also a compressed one; with `replace`, into a directory that has nothing else then."""
    from cove.archive.compressed import open_stream
    from cove.archive.remove_tree import remove_tree
    from cove.archive.stream import Budget, unpack

    budget = Budget(int(most_bytes), int(most_entries))
    unpack(open_stream(ARCHIVE), path, budget, remove_tree, lenient == b"1", replace == b"1", stay)


def watch(answer: Answer, path: bytes, recursive: bytes, includes: bytes, *patterns: bytes) -> None:
    """Events, until nobody reads them any more."""
    from cove.agent import watch

    only = b""
    if not os.path.isdir(path):
        os.stat(path)
        path, only = os.path.split(path)
    filter = make_filter(includes, patterns)

    def emit(kind: bytes, relative: bytes, is_directory: bool, old: bytes) -> None:
        answer.say(b"event", kind, relative, b"1" if is_directory else b"0", old)

    watching = watch.Watch(path, recursive == b"1" and not only, filter, only, emit, answer.flush)
    answer.say(b"watching", b"1" if only else b"0")
    answer.flush()
    watching.run()


def make_filter(includes: bytes, patterns: tuple[bytes, ...]) -> Filter:
    """Make a filter from the number of includes and all patterns."""
    from cove.agent.pattern import Filter, decode

    texts = [decode(each) for each in patterns]
    return Filter(texts[: int(includes)], texts[int(includes) :])


VERBS: dict[bytes, Callable[..., None]] = {
    b"list": list_tree,
    b"glob": glob,
    b"search": search,
    b"digest": digest,
    b"copy": copy,
    b"move": move,
    b"remove": remove,
    b"pack": pack,
    b"save": save,
    b"unpack": unpack,
    b"watch": watch,
}


# By name: their modules are loaded by the verbs that need them.
ANSWERS = {"Refused": b"refused", "Truncated": b"refused", "TooMany": b"toomany"}


def leave(number: int, frame: object) -> None:
    """End, but remove first what is only half made: that is not interrupted again."""
    stay()
    sys.exit(1)


def stay() -> None:
    """Finish, whoever says to leave. Who has said so already is heard here, for the last time."""
    _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)


def main() -> None:
    """Do one verb and say how it ended."""
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGTERM, leave)
    answer = Answer()
    verb, *arguments = [os.fsencode(word) for word in sys.argv[2:]]
    try:
        VERBS[verb](answer, *arguments)
        answer.say(b"done")
    except OSError as error:
        path = error.filename
        path = b"" if path is None or isinstance(path, int) else os.fsencode(path)
        answer.say(b"error", b"%d" % (error.errno or errno.EIO), path)
    except Exception as error:
        kind = ANSWERS.get(type(error).__name__)
        if kind is None:
            raise
        answer.say(kind, str(error).encode("utf-8", "backslashreplace"))
    answer.flush()


if __name__ == "__main__":
    main()
