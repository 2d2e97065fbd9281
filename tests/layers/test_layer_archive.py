"""Layers as archives: what comes back is what was packed, and what an enemy packs does no harm."""

import filecmp
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.archive import tar
from cove.errors import CoveError, FileTooLarge, LimitExceeded, ValidationFailed
from cove.layers import packing, unpacking
from cove.layers.digest import layer_digest
from cove.layers.packing import pack_layer
from cove.layers.record import Layer
from cove.layers.unpacking import unpack_layer

OPAQUE = "user.overlay.opaque"


@pytest.fixture
def layer(tmp_path: Path) -> Iterator[Path]:
    """The data of a layer with everything that there is in one."""
    data = tmp_path / "data"
    work = data / "workspace"
    (work / "a" / "deep").mkdir(parents=True)
    (data / "home").mkdir()
    (data / "tmp").mkdir()
    (data / "tmp").chmod(0o1777)
    (work / "file").write_bytes(b"content" * 1000)
    (work / "file").chmod(0o640)
    os.utime(work / "file", (1000, 1_000_000_000.9))
    (work / "run").write_text("#!/bin/sh\n")
    (work / "run").chmod(0o4755)
    os.link(work / "file", work / "z-hard")
    os.symlink("/etc/passwd", work / "link")
    os.symlink("../../..", work / "a" / "up")
    os.mknod(work / "gone", stat.S_IFCHR, os.makedev(0, 0))
    os.mkfifo(work / "pipe", 0o600)
    os.mknod(work / "socket", stat.S_IFSOCK | 0o600)
    os.setxattr(work / "a", OPAQUE, b"y")
    os.setxattr(work / "a", "user.overlay.origin", b"x")
    os.setxattr(work / "file", "user.note", b"\x00\xff=\n")
    (work / os.fsdecode(b"\xff\n odd")).write_text("odd")
    (work / ("n" * 200)).write_text("long")
    with open(work / "sparse", "wb") as file:
        file.seek(5 << 20)
        file.write(b"in the middle")
        file.truncate(100 << 20)
    (work / "a" / "closed").write_text("closed")
    (work / "a" / "closed").chmod(0)
    (work / "a" / "deep").chmod(0)
    yield data
    subprocess.run(["chmod", "-R", "u+rwX", tmp_path], check=True)


def pack(data: Path) -> bytes:
    pieces: list[bytes] = []
    pack_layer(data, pieces.append)
    return b"".join(pieces)


def unpack(archive: bytes, data: Path, **options: object) -> None:
    data.mkdir()
    arguments = {"digest": "sha256:" + hashlib.sha256(archive).hexdigest(), "size": len(archive), **options}
    pieces = iter([archive[at : at + 100_000] for at in range(0, len(archive), 100_000)])
    unpack_layer(pieces, data, **arguments)  # type: ignore[arg-type]  # as the test says


def test_what_comes_back_is_what_was_packed(layer: Path, tmp_path: Path) -> None:
    archive = pack(layer)
    assert len(archive) < 1 << 20
    unpack(archive, tmp_path / "copy")
    work = tmp_path / "copy" / "workspace"
    file = (work / "file").stat()
    assert (stat.S_IMODE(file.st_mode), file.st_mtime, file.st_nlink) == (0o640, 1_000_000_000, 2)
    assert os.getxattr(work / "file", "user.note") == b"\x00\xff=\n"
    assert os.path.samefile(work / "file", work / "z-hard")
    assert stat.S_IMODE((work / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((work / "a" / "deep").stat().st_mode) == 0
    assert stat.S_IMODE((work / "a" / "closed").stat().st_mode) == 0
    assert stat.S_IMODE((tmp_path / "copy" / "tmp").stat().st_mode) == 0o1777
    assert os.readlink(work / "a" / "up") == "../../.."
    for name in ("gone", "socket"):
        facts = (work / name).lstat()
        assert (stat.S_ISCHR(facts.st_mode), facts.st_rdev) == (True, 0)
    assert stat.S_ISFIFO((work / "pipe").lstat().st_mode)
    assert os.listxattr(work / "a") == [OPAQUE]
    assert (work / "sparse").stat().st_size == 100 << 20
    assert (work / "sparse").stat().st_blocks * 512 < 1 << 20
    assert pack(tmp_path / "copy") == archive


def test_a_digest_says_what_is_in_it_and_not_how_it_lies_on_disk(layer: Path, tmp_path: Path) -> None:
    before = layer_digest(layer)
    with open(layer / "workspace" / "sparse", "r+b") as file:
        file.write(bytes(3 << 20))  # zeros where a hole was
    os.utime(layer / "workspace" / "a", (1, 1))
    assert layer_digest(layer) == before
    changes: list[Callable[[Path], object]] = [
        lambda top: (top / "file").chmod(0o600),
        lambda top: (top / "file").write_bytes(b"c0ntent" * 1000),
        lambda top: os.utime(top / "file", (5, 5)),
        lambda top: (top / "run").rename(top / "ran"),
        lambda top: os.setxattr(top / "file", "user.note", b"other"),
        lambda top: (top / "gone").unlink(),
        lambda top: os.removexattr(top / "a", OPAQUE),
        lambda top: (top / "empty").mkdir(),
        lambda top: (top / "link").unlink(),
    ]
    seen = {before}
    for change in changes:
        change(layer / "workspace")
        seen.add(layer_digest(layer))
    assert len(seen) == len(changes) + 1


PLACES = st.integers(0, (3 << 20) - 1)


@given(st.lists(st.tuples(PLACES, st.integers(1, 200_000)), max_size=12), st.integers(128 << 10, 3 << 20), st.data())
def test_a_sparse_file_comes_back_whole_and_every_byte_counts(
    writes: list[tuple[int, int]], size: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as top:
        path = Path(top) / "data" / "workspace" / "sparse"
        path.parent.mkdir(parents=True)
        with open(path, "wb") as file:
            for at, length in writes:
                file.seek(at)
                file.write(b"x" * length)
            file.truncate(size)
        os.utime(path, (1, 1))
        unpack(pack(Path(top) / "data"), Path(top) / "copy")
        assert filecmp.cmp(path, Path(top) / "copy" / "workspace" / "sparse", shallow=False)
        before = layer_digest(Path(top) / "data")
        changed = data.draw(st.integers(0, size - 1))
        with open(path, "r+b") as file:
            file.seek(changed)
            file.write(b"y")
        os.utime(path, (1, 1))
        assert layer_digest(Path(top) / "data") != before


def test_a_digest_of_another_packing_is_not_believed() -> None:
    layer = Layer(id="a", owner=1, created_at=datetime.now(UTC), digest="sha256:0", archive_size=1)
    record = msgspec.json.decode(msgspec.json.encode(layer))
    assert msgspec.convert(record, Layer) == layer
    before = {name.removesuffix("_2"): value for name, value in record.items()}
    before["whole"] = {"digest": "sha256:0", "size": 1}
    old = msgspec.convert(before, Layer)
    assert (old.digest, old.archive_size, old.whole) == (None, None, None)


def test_gnu_tar_reads_the_archive(layer: Path, tmp_path: Path) -> None:
    (tmp_path / "archive.tar").write_bytes(pack(layer))
    listing = subprocess.run(["tar", "-tvf", tmp_path / "archive.tar"], capture_output=True, check=True).stdout
    assert b"./workspace/a/deep/" in listing
    assert b" link to ./workspace/file" in listing


def test_a_million_hard_links_take_the_room_of_one(tmp_path: Path) -> None:
    work = tmp_path / "data" / "workspace"
    work.mkdir(parents=True)
    (work / "first").write_bytes(os.urandom(1 << 20))
    for number in range(500):
        os.link(work / "first", work / f"l{number}")
    assert len(pack(tmp_path / "data")) < (1 << 20) + 502 * 1024


def test_too_much_is_refused(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(packing, "MOST_ENTRIES", 5)
        with pytest.raises(LimitExceeded):
            pack(layer)
    with monkeypatch.context() as patch:
        patch.setattr(packing, "MOST_LAYER_BYTES", 5)
        with pytest.raises(FileTooLarge):
            pack(layer)
    path = layer / "workspace"
    for _ in range(210):
        path = path / "d"
    path.mkdir(parents=True)
    with pytest.raises(LimitExceeded, match="nested too deeply"):
        pack(layer)


def test_no_more_of_a_directory_or_a_map_of_holes_is_read_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "data" / "workspace"
    work.mkdir(parents=True)
    checks: list[None] = []
    with open(work / "holes", "wb") as file:
        for number in range(20):
            file.seek(number << 17)
            file.write(b"x")
    monkeypatch.setattr(tar, "MOST_RANGES", 5)
    pack_layer(tmp_path / "data", lambda _: None, lambda: checks.append(None))
    assert len(checks) < 15
    unpack(pack(tmp_path / "data"), tmp_path / "copy")
    assert filecmp.cmp(work / "holes", tmp_path / "copy" / "workspace" / "holes", shallow=False)
    for number in range(20):
        (work / f"f{number}").touch()
    checks.clear()
    monkeypatch.setattr(packing, "MOST_ENTRIES", 10)
    with pytest.raises(LimitExceeded):
        pack_layer(tmp_path / "data", lambda _: None, lambda: checks.append(None))
    assert checks == []


def member(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **facts: object
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in facts.items():
        setattr(info, key, value)
    return info, data


def made(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue() + bytes(2 * tar.BLOCK)


WORK = member("workspace", tarfile.DIRTYPE, mode=0o755)
HOSTILE = {
    "dots": [member("workspace/../../escape", data=b"x")],
    "absolute": [member("/etc/passwd", data=b"x")],
    "outside": [member("elsewhere/x", data=b"x")],
    "part-is-file": [member("workspace", data=b"x")],
    "part-is-link": [member("workspace", tarfile.SYMTYPE, linkname="/etc")],
    "part-is-whiteout": [member("workspace", tarfile.CHRTYPE)],
    "link-as-parent": [
        member("workspace/l", tarfile.SYMTYPE, linkname="/proc/self/cwd/escaped"),
        member("workspace/l/x", data=b"x"),
    ],
    "hard-link-out": [member("workspace/h", tarfile.LNKTYPE, linkname="../../../etc/passwd")],
    "hard-link-absolute": [member("workspace/h", tarfile.LNKTYPE, linkname="/etc/passwd")],
    "hard-link-to-link": [
        member("workspace/l", tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("workspace/h", tarfile.LNKTYPE, linkname="workspace/l"),
    ],
    "device": [member("workspace/null", tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block": [member("workspace/disk", tarfile.BLKTYPE, devmajor=8, devminor=0)],
    "whiteout-of-parent": [member("workspace/..", tarfile.CHRTYPE)],
    "whiteout-of-top": [member(".", tarfile.CHRTYPE)],
    "redirect": [member("workspace/d", tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.user.overlay.redirect": "/etc"})],
    "metacopy": [member("workspace/f", pax_headers={"SCHILY.xattr.user.overlay.metacopy": ""})],
    "whiteout-attribute": [member("workspace/f", pax_headers={"SCHILY.xattr.user.overlay.whiteout": "y"})],
    "opaque-file": [member("workspace/f", pax_headers={"SCHILY.xattr.user.overlay.opaque": "y"})],
    "opaque-x": [member("workspace/d", tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.user.overlay.opaque": "x"})],
    "capability": [member("workspace/f", pax_headers={"SCHILY.xattr.security.capability": "x"})],
    "trusted": [member("workspace/f", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})],
    "attribute-of-link": [
        member("workspace/l", tarfile.SYMTYPE, linkname="x", pax_headers={"SCHILY.xattr.user.a": "y"})
    ],
    "nul-in-name": [member("workspace/a", pax_headers={"path": "workspace/a\0b"})],
    "deep": [member("workspace/" + "d/" * 250 + "x", data=b"x")],
    "deep-whiteout": [member("workspace/" + "d/" * 250 + "x", tarfile.CHRTYPE)],
    "file-over-directory": [member("workspace/d", tarfile.DIRTYPE), member("workspace/d", data=b"x")],
    "sparse-bomb": [
        member(
            "workspace/s",
            data=b"0\n".ljust(512, b"\0"),
            pax_headers={
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.name": "workspace/s",
                "GNU.sparse.realsize": str(1 << 50),
            },
        )
    ],
    "sparse-lies": [
        member(
            "workspace/s",
            data=b"1\n0\n99999\n".ljust(512, b"\0"),
            pax_headers={
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                "GNU.sparse.name": "workspace/s",
                "GNU.sparse.realsize": "100",
            },
        )
    ],
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_layer_is_refused(attack: str, tmp_path: Path) -> None:
    archive = made(WORK, *HOSTILE[attack])
    with pytest.raises(ValidationFailed, match="refused"):
        unpack(archive, tmp_path / "data")
    assert sorted(os.listdir(tmp_path)) == ["data"]
    assert not Path("escaped").exists()


def test_directories_that_no_member_names_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_ENTRIES", 300)
    deep = "/".join(["d"] * 150)
    unpack(made(*(member(f"workspace/{deep}/{number}") for number in range(100))), tmp_path / "once")
    with pytest.raises(FileTooLarge):
        unpack(made(*(member(f"workspace/{number}/{deep}/x") for number in range(2))), tmp_path / "twice")


def test_rights_are_not_brought(tmp_path: Path) -> None:
    archive = made(
        WORK,
        member("workspace/suid", data=b"x", mode=0o6777, uid=0, gid=0),
        member("workspace/d", tarfile.DIRTYPE, mode=0o7777),
    )
    unpack(archive, tmp_path / "data")
    work = tmp_path / "data" / "workspace"
    assert stat.S_IMODE((work / "suid").stat().st_mode) == 0o777
    assert stat.S_IMODE((work / "d").stat().st_mode) == 0o1777
    assert (work / "suid").stat().st_uid == os.geteuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_get_the_owner_of_the_layer(layer: Path, tmp_path: Path) -> None:
    unpack(pack(layer), tmp_path / "copy", owner=65534)
    owners = {path.lstat().st_uid for path in (tmp_path / "copy").rglob("*")}
    assert owners == {65534}


def test_another_digest_or_length_is_refused(layer: Path, tmp_path: Path) -> None:
    archive = pack(layer)
    size = len(archive)
    lies: list[dict[str, object]] = [{"digest": "sha256:" + "0" * 64}, {"size": size - 1}, {"size": size + 1}]
    for number, options in enumerate(lies):
        with pytest.raises(ValidationFailed, match="refused"):
            unpack(archive, tmp_path / str(number), **options)
    with pytest.raises(ValidationFailed, match="refused"):
        unpack(archive[:-1024], tmp_path / "short")
    with pytest.raises(ValidationFailed, match="length"):
        unpack(archive + b"more", tmp_path / "long")
    with pytest.raises(CoveError):
        unpack(b"\x00" * 100, tmp_path / "none")


def test_a_bomb_is_stopped_at_the_agreed_length(tmp_path: Path) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        info, _ = member("workspace/bomb")
        info.size = 1 << 40
        yield made(WORK)[:512] + info.tobuf(tarfile.GNU_FORMAT)
        while True:
            taken += 1 << 20
            yield bytes(1 << 20)

    (tmp_path / "data").mkdir()
    with pytest.raises(ValidationFailed, match="length"):
        unpack_layer(endless(), tmp_path / "data", "sha256:" + "0" * 64, 5 << 20)
    assert taken <= 6 << 20


def test_a_full_disk_is_told(layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "mkfifo", full)
    with pytest.raises(CoveError, match="No space"):
        unpack(pack(layer), tmp_path / "copy")


def test_the_kernel_sees_the_same_through_a_layer_that_came_back(layer: Path, tmp_path: Path) -> None:
    lower = tmp_path / "lower"
    for name in ("gone", "socket", "a/hidden", "stays"):
        (lower / name).parent.mkdir(parents=True, exist_ok=True)
        (lower / name).write_text(name)
    unpack(pack(layer), tmp_path / "copy")
    script = 'mount -t overlay overlay -o "lowerdir=$1:$2,userxattr" "$3" && cd "$3" && find . || true'
    seen = []
    for number, top in enumerate((layer, tmp_path / "copy")):
        point = tmp_path / f"m{number}"
        point.mkdir()
        command = ["unshare", "-r", "-m", "sh", "-c", script, "sh", top / "workspace", lower, point]
        seen.append(subprocess.run(list(map(str, command)), capture_output=True, check=True).stdout.split(b"\n"))
    assert b"./stays" in seen[1]
    assert not {b"./gone", b"./a/hidden"} & set(seen[1])
    assert set(seen[1]) == set(seen[0]) - {b"./socket"}
    shutil.rmtree(lower)


def test_what_an_archive_of_the_file_api_refuses_is_still_refused() -> None:
    assert tar.header(b"x", tar.FILE, 0o4755, 0, 0, b"")[100:107] == b"0000755"
