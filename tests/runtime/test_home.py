"""The state directory: what Cove takes for it, and what it leaves alone."""

import os
import stat
from pathlib import Path

import pytest

from cove.errors import SandboxUnavailable
from cove.local.state import default_home, replace_file
from cove.runtime.home import Home

IS_ROOT = os.geteuid() == 0


def modes(top: Path) -> dict[str, int]:
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in (top, *top.rglob("*"))}


@pytest.fixture
def place(other_home: Path) -> Path:
    """Somewhere that the users of sandboxes reach."""
    return other_home / "state"


def test_a_new_one_is_made_with_its_parents_and_opened_again(place: Path) -> None:
    for _ in range(2):
        Home(place / "deep" / "down").open()
    made = place / "deep" / "down"
    assert {path.name for path in made.iterdir()} >= {"sandboxes", "users", "agent", "attach", "executor", "etc"}
    assert stat.S_IMODE(made.stat().st_mode) == (0o711 if IS_ROOT else 0o700)


@pytest.mark.parametrize("there", [(), ("lost+found",), ("python", "key")])
def test_an_empty_one_is_taken_whatever_its_mode(place: Path, there: tuple[str, ...]) -> None:
    place.mkdir(mode=0o700)
    for name in there:
        (place / name).mkdir()
    Home(place).open()
    assert (place / "sandboxes").is_dir()


def test_one_in_which_others_keep_something_is_left_exactly_as_it_is(place: Path) -> None:
    (place / "etc").mkdir(parents=True)
    (place / "etc" / "passwd").write_text("theirs")
    place.chmod(0o755)
    before = modes(place)
    with pytest.raises(SandboxUnavailable, match="holds what is not Cove's: set COVE_HOME to a directory of your own"):
        Home(place).open()
    assert modes(place) == before
    assert (place / "etc" / "passwd").read_text() == "theirs"


def test_the_root_directory_is_refused_even_if_it_looks_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat("/").st_uid)
    monkeypatch.setattr(os, "listdir", lambda _: ["sandboxes", "etc"])
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("nothing of it is to be changed"))
    with pytest.raises(SandboxUnavailable, match="holds what is not Cove's"):
        Home(Path("/"))._make_directories()


def test_what_somebody_has_closed_or_opened_stays_so(place: Path) -> None:
    Home(place).open()
    (place / "agent").chmod(0o755)
    Home(place).open()
    assert stat.S_IMODE((place / "agent").stat().st_mode) == 0o755


@pytest.mark.skipif(not IS_ROOT, reason="needs root: only root can make a directory that is another user's")
def test_one_of_another_user_is_refused(place: Path) -> None:
    place.mkdir()
    os.chown(place, 65534, 65534)
    with pytest.raises(SandboxUnavailable, match="belongs to another user"):
        Home(place).open()
    assert list(place.iterdir()) == []


@pytest.mark.skipif(IS_ROOT, reason="needs a plain user: root's is /var/lib/cove")
def test_without_a_home_directory_none_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COVE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where neither HOME nor passwd knows it
    with pytest.raises(SandboxUnavailable, match="set HOME, or COVE_HOME"):
        default_home()


def test_a_file_is_replaced_whole_for_whoever_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "record"
    replace_file(path, b"old" * 1000)
    with path.open("rb") as reader:
        replace_file(path, b"new", mode=0o640)
        assert reader.read() == b"old" * 1000
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert os.listdir(tmp_path) == ["record"]


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".record.new").write_bytes(b"half of a long one")
    replace_file(tmp_path / "record", b"{}")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"record": b"{}"}


def test_a_durable_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, bool]] = []

    def sync(descriptor: int) -> None:
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")), (tmp_path / "record").exists()))

    monkeypatch.setattr(os, "fsync", sync)
    replace_file(tmp_path / "record", b"{}", durable=True)
    assert synced == [(".record.new", False), (tmp_path.name, True)]
