"""Layers on disk that hostile code wrote: compared, packed and merged within bounds; nothing is followed."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cove.errors import CoveError, Internal
from cove.layers.changes import find_changes
from cove.layers.diff import find_diff
from cove.layers.merging import merge_layers
from cove.layers.packing import pack_layer
from fuzz.trees import remove

MOST_BYTES = 512
_SECRET = b"of the host"
_NAMES = (b"a", b"b", b"c", b"\xff\n", b"n" * 200, b"-", b".wh.a", b"\xe2\x82\xac")


def check(data: bytes) -> None:
    """Make two layers as the bytes say, and do with them what is done with layers."""
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        (place / "secret").write_bytes(_SECRET)
        half = len(data) // 2
        lower, upper = place / "lower", place / "upper"
        for top, part in ((lower, data[:half]), (upper, data[half:])):
            (top / "workspace").mkdir(parents=True)
            _make(os.fsencode(top / "workspace"), part)
        _check_layers(place, lower, upper)
    finally:
        remove(place)


def _make(top: bytes, script: bytes) -> None:  # noqa: C901  # one case for each kind of thing
    """Each two bytes make one thing: what it is, and where."""
    directories = [top]
    for kind, where in zip(script[::2], script[1::2], strict=False):
        directory = directories[(where >> 4) % len(directories)]
        path = os.path.join(directory, _NAMES[where % 8])
        try:
            match kind % 12:
                case 0 | 1:
                    os.mkdir(path)
                    directories.append(path)
                case 2 | 3:
                    _write(path, bytes((kind,)) * where)
                case 4:
                    os.symlink("../" * (where % 5) + "secret", path)
                case 5:
                    os.symlink(top, path)
                case 6:
                    os.mknod(path, stat.S_IFCHR, 0)
                case 7:
                    os.mkfifo(path)
                case 8:
                    os.setxattr(path, "user.overlay.opaque", b"y", follow_symlinks=False)
                case 9 if not os.path.islink(path):
                    os.chmod(path, kind & 0o777)
                case 10:
                    os.link(os.path.join(top, _NAMES[kind % 8]), path, follow_symlinks=False)
                case 11 if not os.path.islink(path):
                    os.truncate(path, where << 12)
        except (OSError, NotImplementedError):
            continue


def _write(path: bytes, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _check_layers(place: Path, lower: Path, upper: Path) -> None:
    target = place / "merged"
    target.mkdir()
    try:
        changes = find_changes([lower], [upper])
        diff = find_diff([lower], [upper])
        packed: list[bytes] = []
        for layer in (lower, upper):
            pack_layer(layer, packed.append)
        merge_layers([lower, upper], target, is_bottom=True)
    except CoveError as error:
        assert not isinstance(error, Internal), error
        return
    paths = [change.path for change in changes]
    assert paths == sorted(set(paths))
    assert _SECRET.decode() not in diff
    assert _SECRET not in b"".join(packed)
    assert (place / "secret").read_bytes() == _SECRET
    assert (place / "secret").stat().st_nlink == 1
    merged = find_changes([lower], [target], is_whole=True)
    assert [change.path for change in merged] == paths, "what was merged is not what was changed"


def seeds() -> Iterator[bytes]:
    """Some trees."""
    yield bytes((0, 0, 2, 0x11, 4, 0x12, 6, 2, 8, 0, 7, 3, 2, 4)) * 2
    yield bytes(range(64))
    yield bytes((0, 0, 0, 0x11, 0, 0x22, 3, 0x33, 11, 0x33, 9, 0)) + bytes((6, 0, 0, 1, 8, 1, 2, 0x12))
