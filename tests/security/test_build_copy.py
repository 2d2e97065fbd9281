"""COPY and ADD: nothing outside the build's directory is read, and nothing outside the new layer is written."""

import io
import os
import stat
import tarfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from cove.archive.tar import Refused
from cove.images import build_source
from cove.images.build_copy import LayerMaker, opened_context
from cove.images.dockerfile import Copy
from cove.images.merged_view import OPAQUE
from cove.layers.record import Layer, Owners
from cove.layers.store import LayerStore

CopyStep = Callable[..., Path]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    path = tmp_path / "context"
    path.mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/one").write_text("secret")
    return path


@pytest.fixture
def copy(tmp_path: Path, context: Path) -> CopyStep:
    """Copy onto layers, by their ids; return the data of the new layer."""
    layers = LayerStore(tmp_path)
    owners = Owners(os.geteuid(), 1)

    def run(
        *sources: str, target: str, below: tuple[str, ...] = (), add: bool = False, mode: int | None = None
    ) -> Path:
        building = tmp_path / f"building-{len(list(tmp_path.iterdir()))}"
        building.mkdir()
        with opened_context(str(context)) as source:
            step = Copy(1, sources, target, None, mode, None, add)
            source.digest(sources, lambda: None)
            LayerMaker(below, layers, owners, lambda: None).copy(building, step, source, target)
        assert os.listdir(building) == ["data"]
        return building / "data"

    return run


def make_image(tmp_path: Path, id: str = "image") -> Path:
    data = tmp_path / "layers" / id / "data"
    (data / "root/usr/bin").mkdir(parents=True)
    layer = Layer(id=id, owner=os.geteuid(), created_at=datetime.now(UTC))
    (data.parent / "layer.json").write_bytes(msgspec.json.encode(layer))
    return data


def content(data: Path) -> dict[str, str]:
    found = {}
    for part in sorted(path for path in data.rglob("*") if not path.is_dir() or path.is_symlink()):
        name = str(part.relative_to(data))
        found[name] = f"-> {os.readlink(part)}" if part.is_symlink() else part.read_text()
    return found


def test_files_go_to_a_path_or_into_a_directory_and_directories_give_their_content(
    copy: CopyStep, context: Path
) -> None:
    (context / "d/e").mkdir(parents=True)
    (context / "d/e/f").write_text("1")
    (context / "g").write_text("2")
    (context / "g").chmod(0o750)
    assert content(copy("g", target="/a/name")) == {"root/a/name": "2"}
    assert content(copy("g", target="/a/")) == {"root/a/g": "2"}
    assert content(copy("d", target="/a")) == {"root/a/e/f": "1"}
    assert content(copy("d", "g", target="/a/")) == {"root/a/e/f": "1", "root/a/g": "2"}
    assert content(copy("?", target="/")) == {"root/e/f": "1", "root/g": "2"}
    assert stat.S_IMODE((copy("g", target="/x") / "root/x").stat().st_mode) == 0o750
    assert stat.S_IMODE((copy("g", target="/x", mode=0o644) / "root/x").stat().st_mode) == 0o644
    with pytest.raises(Refused, match="need a directory"):
        copy("d", "g", target="/a")


def test_what_a_sandbox_has_of_its_own_is_in_parts_of_its_own(copy: CopyStep, context: Path) -> None:
    (context / "f").write_text("1")
    for target, place in (("/workspace/x/", "workspace/x/f"), ("/home/user/f", "home/f"), ("/tmp/", "tmp/f")):
        assert content(copy("f", target=target)) == {place: "1"}
    assert content(copy("f", target="/home/other/")) == {"root/home/other/f": "1"}


@pytest.mark.parametrize("source", ["../secret", "d/../../secret", "/../secret", "..", "../*"])
def test_a_path_that_leads_out_is_refused(copy: CopyStep, context: Path, source: str) -> None:
    (context / "d").mkdir()
    with pytest.raises(Refused, match=r"leads out|not there"):
        copy(source, target="/x")


@pytest.mark.parametrize("link", ["../secret", "/etc/passwd", "../../../../../../etc/passwd", "{outside}/secret"])
def test_a_link_leads_nowhere_but_within_the_directory(copy: CopyStep, context: Path, link: str) -> None:
    (context / "link").symlink_to(link.format(outside=context.parent))
    with pytest.raises(Refused, match="not there"):
        copy("link", target="/x")
    assert list(content(copy(".", target="/x/"))) == ["root/x/link"]


def test_a_link_to_a_directory_outside_is_not_entered(copy: CopyStep, context: Path) -> None:
    (context / "d").symlink_to(context.parent / "secrets")
    for source in ("d/one", "d/*", "d/"):
        with pytest.raises(Refused, match="not there"):
            copy(source, target="/x/")


def test_links_that_lead_back_make_a_pattern_name_no_more_than_may_be(
    copy: CopyStep, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        (context / f"back-{number}").symlink_to(".")
    monkeypatch.setattr(build_source, "MOST_MATCHES", 1000)
    with pytest.raises(Refused, match="more than 1000 files"):
        copy("/".join("*" * 12), target="/srv/")


def test_a_link_within_the_directory_is_followed_when_it_is_named(copy: CopyStep, context: Path) -> None:
    (context / "d").mkdir()
    (context / "d/f").write_text("1")
    (context / "l").symlink_to("/d/f")
    (context / "m").symlink_to("d")
    assert content(copy("l", target="/x")) == {"root/x": "1"}
    assert content(copy("m", target="/x")) == {"root/x/f": "1"}
    assert content(copy(".", target="/"))["root/l"] == "-> /d/f"


def test_a_target_through_links_of_the_image_stays_in_the_image(copy: CopyStep, context: Path, tmp_path: Path) -> None:
    (context / "f").write_text("new")
    image = make_image(tmp_path)
    (image / "root/bin").symlink_to("usr/bin")
    (image / "root/out").symlink_to(str(tmp_path / "secrets"))
    (image / "root/up").symlink_to("../../../../../../../..")
    (image / "root/w").symlink_to("/workspace/deep")
    assert content(copy("f", target="/bin/f", below=("image",))) == {"root/usr/bin/f": "new"}
    assert list(content(copy("f", target="/out/one", below=("image",))).values()) == ["new"]
    assert content(copy("f", target="/up/f", below=("image",))) == {"root/f": "new"}
    assert content(copy("f", target="/w/f", below=("image",))) == {"workspace/deep/f": "new"}
    assert (tmp_path / "secrets/one").read_text() == "secret"


def test_links_below_the_target_are_replaced_or_refused_and_never_followed(
    copy: CopyStep, context: Path, tmp_path: Path
) -> None:
    image = make_image(tmp_path)
    (image / "root/a").mkdir()
    (image / "root/a/sub").symlink_to("/usr")
    (image / "root/a/file").symlink_to("/usr/bin/tool")
    (image / "root/a/directory").mkdir()
    (context / "one/sub").mkdir(parents=True)
    (context / "one/sub/f").write_text("1")
    (context / "two").mkdir()
    (context / "two/file").write_text("2")
    (context / "directory").write_text("3")
    with pytest.raises(Refused, match="/a/sub is no directory"):
        copy("one", target="/a", below=("image",))
    assert content(copy("two", target="/a", below=("image",))) == {"root/a/file": "2"}
    with pytest.raises(Refused, match="/a/directory is a directory"):
        copy("directory", target="/a/", below=("image",))


def test_a_link_that_one_source_brings_is_not_followed_for_the_next(
    copy: CopyStep, context: Path, tmp_path: Path
) -> None:
    (context / "one").mkdir()
    (context / "one/x").symlink_to(tmp_path / "secrets")
    (context / "two/x").mkdir(parents=True)
    (context / "two/x/one").write_text("new")
    with pytest.raises(Refused, match="/a/x is no directory"):
        copy("one", "two", target="/a/")
    assert (tmp_path / "secrets/one").read_text() == "secret"


def test_directories_have_the_mode_that_the_image_gives_them(copy: CopyStep, context: Path, tmp_path: Path) -> None:
    (context / "f").write_text("1")
    image = make_image(tmp_path)
    (image / "root/usr").chmod(0o711)
    data = copy("f", target="/usr/share/f", below=("image",))
    assert [stat.S_IMODE((data / path).stat().st_mode) for path in ("root/usr", "root/usr/share")] == [0o711, 0o755]


def test_what_an_upper_layer_deletes_is_not_there(copy: CopyStep, context: Path, tmp_path: Path) -> None:
    (context / "f").write_text("1")
    low, high = make_image(tmp_path), make_image(tmp_path, "high")
    (low / "root/link").symlink_to("/usr")
    os.mknod(high / "root/link", stat.S_IFCHR, os.makedev(0, 0))
    assert content(copy("f", target="/link/f", below=("image", "high"))) == {"root/link/f": "1"}


def test_ignored_files_are_not_there(copy: CopyStep, context: Path) -> None:
    (context / ".dockerignore").write_text("secret*\n*.d\n!b.d/keep\n")
    for name in ("secret.txt", "file"):
        (context / name).write_text("1")
    for name in ("a.d", "b.d"):
        (context / name).mkdir()
        (context / name / "keep").write_text("2")
    assert sorted(content(copy(".", target="/x"))) == ["root/x/.dockerignore", "root/x/b.d/keep", "root/x/file"]
    with pytest.raises(Refused, match=r"see \.dockerignore"):
        copy("secret.txt", target="/x")


def write_archive(path: Path, compression: str, *members: tuple[str, bytes, str]) -> None:
    mode = f"w:{compression}"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # the mode is made here
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o644
            info.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"text"))


@pytest.mark.parametrize("compression", ["", "gz"])
def test_add_unpacks_archives_and_copies_what_is_none(copy: CopyStep, context: Path, compression: str) -> None:
    write_archive(context / "a.tar", compression, ("d/f", tarfile.REGTYPE, ""), ("d/l", tarfile.SYMTYPE, "f"))
    (context / "plain").write_text("1")
    assert content(copy("a.tar", "plain", target="/x/", add=True)) == {
        "root/x/d/f": "text",
        "root/x/d/l": "-> f",
        "root/x/plain": "1",
    }
    assert (copy("a.tar", target="/x/", add=False) / "root/x/a.tar").exists()


@pytest.mark.parametrize(
    "members",
    [
        [("../out", tarfile.REGTYPE, "")],
        [("l", tarfile.SYMTYPE, "{outside}"), ("l/one", tarfile.REGTYPE, "")],
        [("h", tarfile.LNKTYPE, "../../../secret")],
    ],
    ids=["up", "through a link", "a hard link"],
)
def test_an_archive_writes_nothing_outside(
    copy: CopyStep, context: Path, tmp_path: Path, members: list[tuple[str, bytes, str]]
) -> None:
    outside = str(tmp_path / "secrets")
    write_archive(context / "a.tar", "", *((name, kind, link.format(outside=outside)) for name, kind, link in members))
    with suppress(Refused, OSError):
        copy("a.tar", target="/", add=True)
    assert sorted(os.listdir(tmp_path / "secrets")) == ["one"]
    assert (tmp_path / "secrets/one").read_text() == "secret"
    assert not (tmp_path / "out").exists()


def test_add_says_what_it_cannot_unpack(copy: CopyStep, context: Path) -> None:
    write_archive(context / "a.tar.xz", "xz", ("f", tarfile.REGTYPE, ""))
    with pytest.raises(Refused, match="does not unpack xz"):
        copy("a.tar.xz", target="/", add=True)


def test_pipes_sockets_and_attributes_are_left_out(copy: CopyStep, context: Path) -> None:
    os.mkfifo(context / "pipe")
    (context / "d").mkdir()
    os.setxattr(context / "d", OPAQUE, b"y")
    data = copy(".", target="/x/")
    assert os.listdir(data / "root/x") == ["d"]
    assert os.listxattr(data / "root/x/d") == []
    with pytest.raises(Refused, match="not there"):
        copy("pipe", target="/x")


def test_the_digest_follows_names_kinds_modes_contents_and_links(context: Path) -> None:
    def digest(*words: str) -> str:
        with opened_context(str(context)) as source:
            return source.digest(words or (".",), lambda: None)

    (context / "a").write_text("1")
    seen = [digest()]
    (context / "a").write_text("2")
    seen.append(digest())
    (context / "a").chmod(0o777)
    seen.append(digest())
    (context / "a").rename(context / "b")
    seen.append(digest())
    (context / "d").mkdir()
    seen.append(digest())
    (context / "l").symlink_to("b")
    seen.append(digest())
    (context / "l").unlink()
    (context / "l").symlink_to("a")
    seen.append(digest())
    assert len(set(seen)) == len(seen)
    (context / "b").touch()
    assert digest() == seen[-1]
    assert digest("b") != digest("b", "b")


def test_paths_and_words_without_end_are_refused(
    copy: CopyStep, context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context / "d").mkdir()
    (context / "d/file").write_text("1")
    for wrong in ("a/" * 300_000, "d/../" * 100 + "x/" * 5000):
        with pytest.raises(Refused, match=r"in one another|is not there"):
            copy(wrong, target="/")
        with pytest.raises(Refused, match="in one another"):
            copy("d", target="/" + "y/" * 300 + wrong)
    monkeypatch.setattr(build_source, "MOST_MATCHES", 3)
    with pytest.raises(Refused, match="patterns that name more than 3 files"):
        copy(*("d/*",) * 4, target="/")
    monkeypatch.setattr(build_source, "MOST_ENTRIES", 3)
    monkeypatch.setattr(build_source, "MOST_MATCHES", 100)
    with pytest.raises(Refused, match="copies more than 3 files"):
        copy(*("d",) * 4, target="/")


def test_a_search_gives_up_also_where_everything_is_hidden(context: Path) -> None:
    (context / ".dockerignore").write_text("d/*\n!d/nothing\n")
    (context / "d").mkdir()
    (context / "d/file").write_text("1")

    def give_up() -> None:
        raise TimeoutError

    with opened_context(str(context)) as source, pytest.raises(TimeoutError):
        source.digest(["d"], give_up)
    with opened_context(str(context)) as source, pytest.raises(TimeoutError):
        source.digest(["d/*"], give_up)
