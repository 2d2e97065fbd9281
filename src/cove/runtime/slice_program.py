"""The program that works on the files of a slice of users: root among them, in a user namespace of its own.

It waits for its map, does what one request says, answers, and ends. What it reads is hostile: no link is followed. It
holds nothing of its caller's but the pipes.
"""

import ctypes
import json
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNS = 0x10000000, 0x20000
# The list of what is not root's in a layer lies beside its files: a layer never changes.
_OWNED = "owned"

_ALL_USERS = 65536

_library = ctypes.CDLL(None, use_errno=True)

Answer = object


class _Refused(Exception):
    """Something other than the operating system refuses the request, and says why."""


def main() -> None:
    """Answer one request."""
    _unshare(_CLONE_NEWUSER)
    _say({"ready": True})
    request = json.loads(sys.stdin.buffer.readline())
    try:
        _say({"ok": _VERBS[request["verb"]](request)})
    except OSError as error:
        _say({"error": f"{error.strerror or error}: {error.filename or ''}"})
    except _Refused as error:
        _say({"error": str(error)})


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _unshare(what: int) -> None:
    if _library.unshare(what) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _hold(request: dict[str, object]) -> Answer:
    """Make the user namespace of a jail, in which all users together have a number of processes.

    The limit of who makes a user namespace counts all in it, and who made it: in the namespace above, where nothing
    else is. Its pid is told; it goes when our caller closes the pipe.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _limit_processes(request["processes"])
        _unshare(_CLONE_NEWUSER)
        os.write(theirs, b"1")
        sys.stdin.buffer.read()
        os._exit(0)
    os.close(theirs)
    if not os.read(ours, 1):
        raise OSError(1, "a nested user namespace is refused")
    for name in ("gid_map", "uid_map"):
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        os.write(descriptor, str(request["map"]).encode())
        os.close(descriptor)
    _say({"ok": pid})
    sys.stdin.buffer.read()
    os.waitpid(pid, 0)
    sys.exit()


def _limit_processes(most: object) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if isinstance(most, int):
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (least, least))


def _remove(request: dict[str, object]) -> Answer:
    from cove.archive.remove_tree import remove_tree  # of what is imported, each start pays

    for path in _paths(request, "paths"):
        remove_tree(os.fsdecode(path))
    return None


def _measure(request: dict[str, object]) -> Answer:
    from cove.linux.disk_usage import measure_disk  # of what is imported, each start pays

    usage = measure_disk([os.fsdecode(path) for path in _paths(request, "paths")])
    return [usage.bytes, usage.files, usage.is_partial]


def _record(request: dict[str, object]) -> Answer:
    """Record whose each file of a new layer is, and make all of them root's."""
    from cove.images.recorded_owner import forget_owner, record_owner

    (top,) = _paths(request, "paths")
    seen: set[int] = set()
    for _, directory, name, found in _entries(top):
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFREG and found.st_nlink > 1:
            if found.st_ino in seen:
                continue
            seen.add(found.st_ino)
        owner = found.st_uid, found.st_gid
        if kind in (stat.S_IFREG, stat.S_IFDIR):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
            try:
                if owner == (0, 0):
                    forget_owner(descriptor)
                    continue
                record_owner(descriptor, owner)
                os.fchown(descriptor, 0, 0)
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & (0o7777 if kind == stat.S_IFDIR else 0o777))
            finally:
                os.close(descriptor)
        elif owner != (0, 0):
            os.chown(name, 0, 0, dir_fd=directory, follow_symlinks=False)
    return None


def _pack(request: dict[str, object]) -> Answer:
    """Write the whole archive of an upper to a new file, with owners as they are among the users of the slice."""
    from pathlib import Path

    from cove.errors import CoveError  # of what is imported, each start pays
    from cove.images.whole_layer import pack_files
    from cove.layers.digest import Hashing
    from cove.layers.record import Owners

    data, target = _paths(request, "paths")
    try:
        with open(target, "xb") as file:
            hashing = Hashing(file.write)
            pack_files(Path(os.fsdecode(data)), Owners(0, _ALL_USERS), hashing, lambda: None)
    except CoveError as error:
        raise _Refused(error.message) from None
    return [hashing.digest, hashing.size]


def _give(request: dict[str, object]) -> Answer:
    """Give the files of layers to whom they belong, in a new upper: the kernel copies up what changes its owner."""
    from cove.attach.kernel import Failed  # of what is imported, each start pays
    from cove.attach.workbench import Workbench
    from cove.images.recorded_owner import read_owner
    from cove.linux.open_below import FILE, open_below
    from cove.linux.subordinate import fits

    layers, (upper,) = _paths(request, "layers"), _paths(request, "upper")
    owner = request["owner"]
    assert isinstance(owner, list)
    for path in _paths(request, "own"):
        os.chown(os.path.join(upper, b"data", path), *owner)
    owned = list(dict.fromkeys(path for layer in layers for path in _owned(layer)))
    if not owned:
        return None
    _unshare(_CLONE_NEWNS)
    bench = Workbench()
    try:
        bench.make([], [])
        names = [b"%d" % number for number in range(len(layers))]
        for name, path in (*zip(names, layers, strict=True), (b"upper", upper)):
            descriptor = os.open(path, os.O_PATH)
            bench.add([name, b"path", path], [descriptor])
            os.close(descriptor)
        bench.merge([b":".join(reversed(names)), *_paths(request, "parts")], [])
    except Failed as failure:
        raise _Refused(f"{os.strerror(failure.number)}: {failure.subject}") from None
    for path in owned:
        part, _, rest = path.partition(b"/")
        with suppress(FileNotFoundError, NotADirectoryError), open_below(bench.parts[part], rest, FILE) as opened:
            found = read_owner(opened.descriptor)
            if found != (0, 0) and all(map(fits, found)):
                mode = stat.S_IMODE(opened.mode)
                os.fchown(opened.descriptor, *found)
                os.fchmod(opened.descriptor, mode)
    bench.close()
    return None


def _owned(layer: bytes) -> list[bytes]:
    """Return the paths in a layer whose owner is recorded; found out once."""
    from cove.images.recorded_owner import read_owner

    note = os.path.join(os.path.dirname(layer), os.fsencode(_OWNED))
    with suppress(FileNotFoundError), open(note, "rb") as file:
        return [path for path in file.read().split(b"\0") if path]
    found = []
    for path, directory, name, entry in _entries(layer):
        if stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
            try:
                if read_owner(descriptor) != (0, 0):
                    found.append(os.path.relpath(os.path.join(path, name), layer))
            finally:
                os.close(descriptor)
    building = note + b".%d" % os.getpid()
    with open(building, "wb") as file:
        file.write(b"\0".join(found))
    os.rename(building, note)
    return found


def _entries(top: bytes) -> Iterator[tuple[bytes, int, bytes, os.stat_result]]:
    """Go through a tree without following a link: an open directory, a name in it, and what that is."""
    for path, directories, files, descriptor in os.fwalk(top, follow_symlinks=False):
        for name in (*directories, *files):
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            yield path, descriptor, name, found


def _changes(request: dict[str, object]) -> Answer:
    import msgspec  # of what is imported, each start pays

    from cove.errors import CoveError  # of what is imported, each start pays
    from cove.layers.changes import find_changes

    try:
        return msgspec.to_builtins(find_changes(*_trees(request), is_whole=bool(request["whole"])))
    except CoveError as error:
        raise _Refused(error.message) from None


def _diff(request: dict[str, object]) -> Answer:
    from cove.errors import CoveError  # of what is imported, each start pays
    from cove.layers.diff import find_diff

    (path,) = _paths(request, "paths")
    try:
        return find_diff(*_trees(request), path, is_whole=bool(request["whole"]))
    except CoveError as error:
        raise _Refused(error.message) from None


def _trees(request: dict[str, object]) -> tuple[list["Path"], list["Path"]]:
    from pathlib import Path  # of what is imported, each start pays

    below, above = ([Path(os.fsdecode(path)) for path in _paths(request, name)] for name in ("below", "above"))
    return list(below), list(above)


def _paths(request: dict[str, object], name: str) -> list[bytes]:
    found = request[name]
    assert isinstance(found, list)
    return [os.fsencode(path) for path in found]


_VERBS: dict[str, Callable[[dict[str, object]], Answer]] = {
    "hold": _hold,
    "remove": _remove,
    "measure": _measure,
    "pack": _pack,
    "record": _record,
    "give": _give,
    "changes": _changes,
    "diff": _diff,
}

if __name__ == "__main__":
    main()
