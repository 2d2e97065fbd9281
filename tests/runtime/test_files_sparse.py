"""Files with holes, and how much comes out of a sandbox."""

import io
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.serving import MakeSandbox

from cove import AsyncSandbox, FileTooLarge, ValidationFailed
from cove.archive import tar, unpacking
from cove.archive.remove_tree import remove_tree
from cove.archive.stream import Budget, Stream, pack, unpack
from cove.local.files import write_sparse

pytestmark = pytest.mark.anyio

SIZE = 100 << 20
MAKE = f"mkdir t && printf begin > t/x && truncate -s {SIZE // 2} t/x && printf middle >> t/x && truncate -s {SIZE} t/x"


def check(path: Path) -> None:
    """The file that MAKE has made, with its holes."""
    with path.open("rb") as file:
        assert file.read(10) == b"begin\0\0\0\0\0"
        file.seek(SIZE // 2 - 2)
        assert file.read(10) == b"\0\0middle\0\0"
    found = path.stat()
    assert found.st_size == SIZE
    assert found.st_blocks * 512 < 1 << 20


async def test_holes_stay_holes_in_a_download(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    async with make_sandbox() as sandbox:
        (await sandbox.exec(MAKE)).check()
        await sandbox.files.download("t/x", tmp_path / "file")
        check(tmp_path / "file")
        await sandbox.files.download("t", tmp_path / "tree")
        check(tmp_path / "tree/x")
        (await sandbox.exec("truncate -s 1M t/only")).check()
        await sandbox.files.download("t/only", tmp_path / "only")
        assert (tmp_path / "only").read_bytes() == bytes(1 << 20)


async def test_holes_stay_holes_on_the_way_in_and_in_a_copy(tmp_path: Path) -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec(MAKE)).check()
        await sandbox.files.download("t", tmp_path / "t")
        await sandbox.files.upload(tmp_path / "t", "again")
        await sandbox.files.upload(tmp_path / "t/x", "single")
        await sandbox.files.copy("t/x", "copied")
        await sandbox.files.copy("t", "tree")
        for path in ("again/x", "single", "copied", "tree/x"):
            assert (await sandbox.exec(f"cmp t/x {path}")).ok
            assert int((await sandbox.exec(f"stat -c %b {path}")).stdout) * 512 < 1 << 20


async def test_more_than_was_agreed_does_not_come_out(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    async with make_sandbox() as sandbox:
        (await sandbox.exec("mkdir t; head -c 100000 /dev/urandom > t/x; ln -s t/x link")).check()
        for path in ("t", "t/x", "link"):
            with pytest.raises(FileTooLarge, match="99999 bytes: give a larger max_bytes"):
                await sandbox.files.download(path, tmp_path / "out", max_bytes=99_999)
        if (await sandbox.exec("truncate -s 5T bomb")).ok:  # a limit on disk may forbid it
            with pytest.raises(FileTooLarge, match="max_bytes"):
                await sandbox.files.download("bomb", tmp_path / "out")
        for value in (-1, True, 1.5, "1"):
            with pytest.raises(ValidationFailed, match="max_bytes"):
                await sandbox.files.download("t/x", tmp_path / "out", max_bytes=value)  # type: ignore[arg-type]  # as an untyped caller may
        assert os.listdir(tmp_path) == []
        await sandbox.files.download("t/x", tmp_path / "out", max_bytes=100_000)
        assert (tmp_path / "out").stat().st_size == 100_000


def packed(directory: Path) -> bytes:
    with tempfile.TemporaryFile() as file:
        os.set_blocking(file.fileno(), True)
        pack(os.fsencode(directory), Stream(file.fileno()), Budget(1 << 40, 1000))
        file.seek(0)
        return file.read()


def unpacked(
    data: bytes,
    target: Path,
    remove: Callable[[str], None] = remove_tree,
    begin_change: Callable[[], None] = lambda: None,
    *,
    replace: bool = False,
) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        budget = Budget(1 << 40, 1000)
        unpack(Stream(file.fileno()), os.fsencode(target), budget, remove, replace=replace, begin_change=begin_change)


DEEP = b"/".join([b"d"] * 150)


@pytest.mark.parametrize(("kind", "path"), [(tar.FILE, DEEP + b"/x%d"), (tar.DIRECTORY, b"%d/" + DEEP)])
def test_directories_that_no_member_names_count_too(tmp_path: Path, kind: bytes, path: bytes) -> None:
    members = [tar.Member(kind, (path % number).split(b"/")) for number in range(3 if kind == tar.FILE else 7)]
    archive = b"".join(map(tar.encode_member, members)) + bytes(2 * tar.BLOCK)
    if kind == tar.FILE:
        unpacked(archive, tmp_path / "out")  # those of the second are there
        assert len(list((tmp_path / "out").rglob("x*"))) == 3
    else:
        with pytest.raises(OSError, match="more than may be transferred"):
            unpacked(archive, tmp_path / "out")
        assert os.listdir(tmp_path) == []


def test_the_names_of_directories_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_NAME_BYTES", 1000)
    members = [tar.Member(tar.DIRECTORY, [b"%0100d" % number]) for number in range(11)]
    archive = [tar.encode_member(member) for member in members]
    unpacked(b"".join([*archive[:10], *archive[:10]]) + bytes(2 * tar.BLOCK), tmp_path / "out")
    with pytest.raises(OSError, match="more names of directories"):
        unpacked(b"".join(archive) + bytes(2 * tar.BLOCK), tmp_path / "more")


def test_an_unpacking_that_is_told_to_end_while_it_cleans_up_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_bytes(bytes(5000))
    (tmp_path / "out").mkdir()
    attempts: list[str] = []

    def remove(path: str) -> None:
        attempts.append(path)
        if len(attempts) == 1:
            raise SystemExit
        remove_tree(path)

    with pytest.raises(SystemExit):
        unpacked(packed(tmp_path / "in")[:2000], tmp_path / "out", remove)
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("replace", [True, False])
def test_an_unpacking_that_is_told_to_end_before_it_changes_the_target_changes_nothing(
    tmp_path: Path, replace: bool
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x").write_text("new")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x").write_text("old")

    def end() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        unpacked(packed(tmp_path / "in"), tmp_path / "out", begin_change=end, replace=replace)
    assert os.listdir(tmp_path / "out") == ["x"]
    assert (tmp_path / "out/x").read_text() == "old"


def test_other_programs_understand_an_archive_of_holes(tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    with (tmp_path / "in/sub/x").open("wb") as file:
        for at in range(5):
            file.seek(at << 20)
            file.write(b"data")
        file.truncate(9 << 20)
    data = packed(tmp_path / "in")
    assert len(data) < 100_000
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        content = archive.extractfile("./sub/x")
        assert content is not None
        assert content.read() == (tmp_path / "in/sub/x").read_bytes()
    unpacked(data, tmp_path / "out")
    assert (tmp_path / "out/sub/x").read_bytes() == (tmp_path / "in/sub/x").read_bytes()
    assert (tmp_path / "out/sub/x").stat().st_blocks * 512 < 1 << 20


def sparse(places: bytes, content: bytes = b"", realsize: int = 10_000, **other: bytes) -> bytes:
    """An archive with one file whose list of places is as given."""
    facts = {**tar.SPARSE, b"GNU.sparse.name": b"x", b"GNU.sparse.realsize": b"%d" % realsize}
    facts.update({b"GNU.sparse." + key.encode(): value for key, value in other.items()})
    records = b"".join(tar.pax_record(key, value) for key, value in facts.items())
    places += bytes(tar.padding(len(places)))
    body = places + content
    return b"".join(
        [
            tar.header(b"@", tar.PAX, 0o644, len(records), 0, b""),
            records + bytes(tar.padding(len(records))),
            tar.header(b"x", tar.FILE, 0o644, len(body), 0, b""),
            body + bytes(tar.padding(len(body))),
            bytes(1024),
        ]
    )


FORGED = {
    "overlapping": sparse(b"2\n0\n4\n2\n4\n", b"x" * 8),
    "backwards": sparse(b"2\n8\n4\n0\n4\n", b"x" * 8),
    "beyond the end": sparse(b"1\n9999\n4\n", b"x" * 4),
    "far beyond the end": sparse(b"1\n999999999999999999\n4\n", b"x" * 4),
    "less than it says": sparse(b"1\n0\n1000\n", b"x" * 4),
    "more than it says": sparse(b"1\n0\n4\n", b"x" * 1000),
    "no list": sparse(b""),
    "a list of letters": sparse(b"1\na\nb\n", b"x"),
    "negative": sparse(b"1\n-1\n4\n", b"x" * 4),
    "a list without end": sparse(b"999999\n" + b"0\n0\n" * 200_000),
    "a long number": sparse(b"1" * 3000),
    "a name that leads out": sparse(b"0\n", name=b"../x"),
    "an absolute name": sparse(b"0\n", name=b"/tmp/x"),
    "a directory": sparse(b"0\n", name=b"x/"),
    "another version": sparse(b"0\n", minor=b"1"),
    "no size": sparse(b"0\n", realsize=-1),
    "a size beyond all bounds": sparse(b"0\n", realsize=10**17),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_list_of_holes_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises((tar.Refused, OSError)):
        unpacked(FORGED[name], tmp_path / "out")
    assert os.listdir(tmp_path) == []


async def test_a_forged_list_of_holes_is_refused_inside_too() -> None:
    async with AsyncSandbox.create() as sandbox:
        for data in FORGED.values():

            async def chunks(data: bytes = data) -> AsyncIterator[bytes]:
                yield data

            with pytest.raises((ValidationFailed, FileTooLarge)):
                await sandbox.files.write_archive("t", chunks())
        assert not await sandbox.files.exists("t")


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200_000)), max_size=6), st.integers(1, 100_000))
def test_what_is_written_with_holes_is_the_same(runs: list[tuple[bool, int]], piece: int) -> None:
    data = b"".join((b"x" if is_data else b"\0") * size for is_data, size in runs)
    with tempfile.TemporaryFile() as file:
        for at in range(0, len(data), piece):
            write_sparse(file.fileno(), data[at : at + piece], at)
        os.ftruncate(file.fileno(), len(data))
        assert file.read() == data
