"""Changes and patches from directories on disk: those that the kernel's overlayfs writes, and hostile ones."""

import os
import random
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cove.core import layer_changes
from cove.errors import LimitExceeded
from cove.layers import changes, diff
from cove.layers.changes import find_changes
from cove.layers.diff import find_diff

# Writes through a real overlay as code inside does, and keeps a copy of what it then sees.
WRITER = """
import os, random, shutil, sys
top, seed = sys.argv[1], int(sys.argv[2])
os.chdir(top)
choose = random.Random(seed)
def paths():
    return [os.path.join(where, name) for where, dirs, files in os.walk(".") for name in dirs + files]
for number in range(40):
    found = paths()
    path = choose.choice(found) if found else "./first"
    action = choose.choice(["write", "write", "append", "remove", "rename", "mkdir", "link", "again", "chmod", "hard"])
    try:
        if action == "write":
            with open(os.path.join(os.path.dirname(path), "new%d" % number), "w") as file:
                file.write("content %d" % number)
        elif action == "append" and os.path.isfile(path) and not os.path.islink(path):
            with open(path, "a") as file:
                file.write(choose.choice(["", "more\\n"]))
        elif action in ("remove", "again"):
            was_directory = os.path.isdir(path) and not os.path.islink(path)
            (shutil.rmtree if was_directory else os.unlink)(path)
            if action == "again":
                os.mkdir(path) if choose.random() < 0.6 else open(path, "w").write("again")
        elif action == "rename":
            shutil.move(path, os.path.join(os.path.dirname(path), "moved%d" % number))
        elif action == "mkdir":
            os.makedirs(os.path.join(os.path.dirname(path), "dir%d" % number, "deep"))
        elif action == "link":
            os.symlink("/etc/passwd", os.path.join(os.path.dirname(path), "link%d" % number))
        elif action == "hard" and os.path.isfile(path):
            os.link(path, os.path.join(os.path.dirname(path), "hard%d" % number), follow_symlinks=False)
        elif action == "chmod" and not os.path.islink(path):
            os.chmod(path, choose.choice([0o700, 0o755]))
    except (FileNotFoundError, NotADirectoryError, FileExistsError):
        pass
"""
MOUNT = (
    'mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3,userxattr" "$4" '
    '&& "$6" -c "$7" "$4" "$8" && cp -a "$4/." "$5"'
)


def fill(top: Path, seed: int) -> None:
    choose = random.Random(seed)
    for number in range(25):
        path = top.joinpath(*(choose.choice("abc") for _ in range(choose.randint(0, 3))), f"file{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"old {number}\n" * choose.randint(0, 3))


def write_through_overlay(place: Path, lower: list[Path], upper: Path, after: Path, seed: int) -> None:
    for path in (upper, after, place / "work", place / "merged"):
        path.mkdir(parents=True, exist_ok=True)
    below = ":".join(str(each) for each in reversed(lower))
    arguments = [below, upper, place / "work", place / "merged", after, sys.executable, WRITER, str(seed)]
    command = ["unshare", "-r", "-m", "sh", "-c", MOUNT, "sh", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=60)
    (place / "work" / "work").chmod(0o700)
    shutil.rmtree(place / "work")


def describe(top: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in top.rglob("*"):
        facts = path.lstat()
        content = os.readlink(path) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        mode = 0 if path.is_symlink() else facts.st_mode
        found[str(path.relative_to(top))] = (stat.S_IFMT(facts.st_mode), mode, content)
    return found


def truth(before: Path, after: Path) -> list[tuple[str, str]]:
    old, new = describe(before), describe(after)
    return [
        (f"/workspace/{path}", "added" if path not in old else "deleted" if path not in new else "modified")
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_changes_of_a_real_overlay_are_what_differs(tmp_path: Path, seed: int) -> None:
    bottom, first, second = (tmp_path / name for name in ("bottom", "first", "second"))
    fill(bottom / "workspace", seed)
    write_through_overlay(tmp_path, [bottom / "workspace"], first / "workspace", tmp_path / "after1", seed)
    lower = [bottom / "workspace", first / "workspace"]
    write_through_overlay(tmp_path, lower, second / "workspace", tmp_path / "after2", seed + 100)

    def found(lower: list[Path], upper: list[Path]) -> list[tuple[str, str]]:
        return [(each.path, each.kind.value) for each in find_changes(lower, upper)]

    assert found([bottom], [first]) == truth(bottom / "workspace", tmp_path / "after1")
    assert found([bottom, first], [second]) == truth(tmp_path / "after1", tmp_path / "after2")
    assert found([bottom], [first, second]) == truth(bottom / "workspace", tmp_path / "after2")
    assert found([bottom, first, second], []) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_patch_makes_the_new_tree_of_the_old_one(tmp_path: Path, seed: int) -> None:
    bottom, upper = tmp_path / "bottom", tmp_path / "upper"
    fill(bottom / "workspace", seed)
    write_through_overlay(tmp_path, [bottom / "workspace"], upper / "workspace", tmp_path / "after", seed)
    patch = find_diff([bottom], [upper])
    repository = tmp_path / "repository"
    shutil.copytree(bottom / "workspace", repository / "workspace", symlinks=True)
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    subprocess.run(["git", "apply", "-"], cwd=repository, input=patch.encode(), check=True)
    expected = {path: facts for path, facts in describe(tmp_path / "after").items() if facts[0] != stat.S_IFDIR}  # type: ignore[index]  # a tuple
    made = {path: facts for path, facts in describe(repository / "workspace").items() if facts[0] != stat.S_IFDIR}  # type: ignore[index]  # a tuple
    assert {path: facts[2] for path, facts in made.items()} == {path: facts[2] for path, facts in expected.items()}  # type: ignore[index]  # tuples


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The workspaces of a lower and an upper layer."""
    lower, upper = tmp_path / "lower" / "workspace", tmp_path / "upper" / "workspace"
    lower.mkdir(parents=True)
    upper.mkdir(parents=True)
    yield lower, upper
    subprocess.run(["chmod", "-R", "u+rwx", tmp_path], check=True)


def listed(lower: Path, upper: Path) -> list[tuple[str, str, int]]:
    return [(each.path, each.kind.value, each.size) for each in find_changes([lower.parent], [upper.parent])]


def test_what_its_owner_cannot_read_is_listed_and_keeps_its_mode(pair: tuple[Path, Path]) -> None:
    lower, upper = pair
    for top in pair:
        (top / "closed" / "inner").mkdir(parents=True)
        (top / "closed" / "inner" / "same").write_text("12345")
    (upper / "closed" / "inner" / "secret").write_text("1234")
    for path, mode in (("closed/inner/secret", 0), ("closed/inner/same", 0), ("closed/inner", 0o100), ("closed", 0)):
        (upper / path).chmod(mode)
    assert listed(lower, upper) == [
        ("/workspace/closed", "modified", 0),
        ("/workspace/closed/inner", "modified", 0),
        ("/workspace/closed/inner/same", "modified", 5),
        ("/workspace/closed/inner/secret", "added", 4),
    ]
    assert "+1234" in find_diff([lower.parent], [upper.parent])
    assert stat.S_IMODE((upper / "closed").stat().st_mode) == 0


def test_links_are_compared_and_never_followed(pair: tuple[Path, Path]) -> None:
    lower, upper = pair
    (lower / "d").mkdir()
    (lower / "d" / "passwd").write_text("mine")
    (upper / "d").symlink_to("/etc")
    (lower / "l").symlink_to("one")
    (upper / "l").symlink_to("two")
    (upper / "workspace").symlink_to("/")
    assert listed(lower, upper) == [
        ("/workspace/d", "modified", 4),
        ("/workspace/d/passwd", "deleted", 4),
        ("/workspace/l", "modified", 3),
        ("/workspace/workspace", "added", 1),
    ]
    assert "root:" not in find_diff([lower.parent], [upper.parent])


def test_a_part_that_is_a_link_is_no_part(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "home").symlink_to("/etc")
    assert find_changes([], [tmp_path / "upper"]) == []


def test_pipes_sockets_and_odd_names_are_named(pair: tuple[Path, Path]) -> None:
    lower, upper = pair
    os.mkfifo(upper / "pipe")
    os.mknod(upper / "socket", stat.S_IFSOCK | 0o600)
    (upper / os.fsdecode(b"\xff\n")).write_text("x\n")
    (lower / "pipe").write_text("was a file")
    assert listed(lower, upper) == [
        ("/workspace/pipe", "modified", 0),
        ("/workspace/socket", "added", 0),
        ("/workspace/\udcff\n", "added", 2),
    ]
    patch = find_diff([lower.parent], [upper.parent])
    assert 'diff --git "a/workspace/\\377\\n" "b/workspace/\\377\\n"' in patch
    assert "Binary files a/workspace/pipe and b/workspace/pipe differ" in patch


def test_sparse_files_and_hard_links_cost_no_more(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    lower, upper = pair
    for top in pair:
        with open(top / "sparse", "wb") as file:
            file.truncate(1 << 40)
    for number in range(20):
        os.link(upper / "sparse", upper / f"hard{number}")
    monkeypatch.setattr(changes, "MOST_COMPARED_BYTES", 1 << 20)
    found = listed(lower, upper)
    assert len(found) == 21
    assert ("/workspace/sparse", "modified", 1 << 40) in found
    assert find_diff([lower.parent], [upper.parent]).count("Binary files") == 21


def test_equal_contents_are_no_change(pair: tuple[Path, Path]) -> None:
    for top in pair:
        (top / "same").write_text("same")
        (top / "large").write_bytes(b"x" * (3 << 20))
    os.utime(pair[1] / "same", (0, 0))
    assert listed(*pair) == []
    (pair[1] / "large").write_bytes(b"x" * ((3 << 20) - 1) + b"y")
    assert listed(*pair) == [("/workspace/large", "modified", 3 << 20)]


def test_directories_without_end_are_refused(pair: tuple[Path, Path]) -> None:
    upper = pair[1]
    descriptor = os.open(upper, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=descriptor)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    with pytest.raises(LimitExceeded, match="nested deeper"):
        listed(*pair)


def test_more_files_than_can_be_listed_are_refused(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (pair[1] / str(number)).touch()
    monkeypatch.setattr(layer_changes, "MOST_CHANGES", 20)
    with pytest.raises(LimitExceeded, match="more than 20 files"):
        listed(*pair)


def test_a_directory_with_files_without_end_is_not_read_whole(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (pair[1] / str(number)).touch()
    monkeypatch.setattr(layer_changes, "MOST_VISITED", 20)
    with pytest.raises(LimitExceeded, match="a directory has more than 20 files"):
        listed(*pair)


def test_giving_up_ends_a_comparison(pair: tuple[Path, Path]) -> None:
    for top in pair:
        (top / "a").write_text("a")

    def give_up() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        find_changes([pair[0].parent], [pair[1].parent], give_up)


def test_a_patch_is_cut_and_names_large_files(pair: tuple[Path, Path]) -> None:
    lower, upper = pair
    (upper / "a").write_text("a\n")
    (upper / "big").write_text("x" * (diff.MOST_FILE_BYTES + 1))
    (upper / "c").write_text("c\n" * 100)
    (upper.parent / "home").mkdir()
    (upper.parent / "home" / "below").write_text("home\n")
    whole = find_diff([lower.parent], [upper.parent])
    assert "Binary files /dev/null and b/workspace/big differ" in whole
    assert "+++ b/home/user/below" in whole
    only = find_diff([lower.parent], [upper.parent], b"/workspace/a")
    assert only.count("diff --git") == 1
    cut = find_diff([lower.parent], [upper.parent], b"/workspace/", most_bytes=300)
    assert cut.endswith("cut: 1 more files differ, over 300 bytes in all: name a path\n")
    assert find_diff([lower.parent], [upper.parent], most_bytes=1).endswith(
        "cut: 4 more files differ, over 1 bytes in all: name a path\n"
    )


def test_a_tree_that_changes_meanwhile_leads_nowhere_else(pair: tuple[Path, Path], tmp_path: Path) -> None:
    lower, upper = pair
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "trap").write_text("secret")
    (upper / "real").mkdir()
    (upper / "link").symlink_to(outside)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for names in (("real", "was"), ("link", "real"), ("real", "link"), ("was", "real")):
                os.rename(upper / names[0], upper / names[1])

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(200):
            assert not any("trap" in change[0] for change in listed(lower, upper))
            assert "secret" not in find_diff([lower.parent], [upper.parent])
    finally:
        ended.set()
        thread.join()
