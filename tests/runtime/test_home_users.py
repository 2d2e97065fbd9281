"""User ids of sandboxes: given once, taken back with their sandbox, and not the same in two state directories."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cove.core.users import FIRST_RANGE, RANGE_USERS
from cove.core.users import RANGES as RANGE_COUNT
from cove.errors import SandboxUnavailable
from cove.linux.cgroup import find_hierarchies
from cove.linux.pidfd import kill_orphans
from cove.runtime.home import Home
from cove.runtime.user_ids import FIRST_USER_ID, RANGES, REGISTERS, USER_IDS, UserIds
from cove.runtime.user_ranges import UserRanges

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root gives sandboxes users of their own")


@pytest.fixture
def homes(cove_home: Path, other_home: Path) -> tuple[Home, Home]:
    pair = Home(cove_home), Home(other_home)
    for home in pair:
        home.open()
    return pair


def test_two_state_directories_do_not_give_the_same_ids(homes: tuple[Home, Home]) -> None:
    places = [home.allocate() for home in homes for _ in range(5)]
    try:
        ids = [place.user_id or 0 for place in places]
        assert len(set(ids)) == len(ids)
        assert all(FIRST_USER_ID <= user < FIRST_USER_ID + RANGES * USER_IDS for user in ids)
        assert len({(user - FIRST_USER_ID) // USER_IDS for user in ids}) == len(homes)
    finally:
        for place, home in zip(places, [home for home in homes for _ in range(5)], strict=True):
            home.release(place)


@pytest.fixture
def register(tmp_path: Path) -> Path:
    return tmp_path / "register"


def state(path: Path, register: Path) -> UserIds:
    """The ids of a state directory of that name."""
    (path / "users").mkdir(parents=True, exist_ok=True)
    return UserIds(path / "users", (register,))


def test_ids_that_come_round_stay_in_their_own_range(tmp_path: Path, register: Path) -> None:
    first, second = (state(tmp_path / name, register) for name in ("first", "second"))
    living = {first.allocate("a"), second.allocate("b")}
    (tmp_path / "first/users.lock").write_text(f"{USER_IDS - 3:<20}")
    assert first.allocate("last") == FIRST_USER_ID + USER_IDS - 2
    again = first.allocate("round")
    assert again == FIRST_USER_ID + 1
    assert again not in living


def test_an_id_that_a_process_has_is_not_given(tmp_path: Path, register: Path) -> None:
    process = subprocess.Popen(["sleep", "1000"], user=FIRST_USER_ID, group=FIRST_USER_ID)
    try:
        assert state(tmp_path / "state", register).allocate("key") == FIRST_USER_ID + 1
    finally:
        process.kill()
        process.wait()


def test_a_range_is_free_again_when_its_state_directory_is_gone(tmp_path: Path, register: Path) -> None:
    before = state(tmp_path / "first", register).allocate("key")
    assert state(tmp_path / "second", register).allocate("key") == before + USER_IDS
    shutil.rmtree(tmp_path / "first")
    assert state(tmp_path / "third", register).allocate("key") == before


def test_a_state_directory_keeps_its_range_when_it_is_moved_and_a_copy_has_none(tmp_path: Path, register: Path) -> None:
    before = state(tmp_path / "first", register).allocate("key")
    (tmp_path / "first").rename(tmp_path / "moved")
    assert state(tmp_path / "moved", register).allocate("key") == before + 1
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    with pytest.raises(SandboxUnavailable, match="a copy of the other"):
        state(tmp_path / "copy", register).allocate("key")


def test_without_a_place_for_the_register_there_is_no_id(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxUnavailable, match="register of user ids"):
        state(tmp_path / "state", tmp_path / "file/register").allocate("key")


def test_ids_go_on_from_the_last_one_and_not_from_the_first_that_is_free(homes: tuple[Home, Home]) -> None:
    home = homes[0]
    first = home.allocate()
    home.release(first)
    second = home.allocate()
    home.release(second)
    assert (first.user_id or 0) + 1 == second.user_id


def test_a_reservation_without_a_sandbox_is_taken_back(homes: tuple[Home, Home]) -> None:
    home = homes[1]
    living = home.allocate()
    stray, empty = home.path / "users/2000000007", home.path / "users/2000000008"
    stray.write_text("nosuchplace1")
    empty.write_text("")
    home.collect(find_hierarchies())
    assert [path.name for path in (home.path / "users").iterdir()] == [str(living.user_id)]
    home.release(living)


def test_only_who_has_exactly_the_mark_is_an_orphan() -> None:
    marked = subprocess.Popen(["sleep", "1000", "100s"])
    similar = subprocess.Popen(["sleep", "1000", "100"])
    try:
        assert kill_orphans("100s") == 1
        assert marked.wait(10) == -9
        assert similar.poll() is None
    finally:
        similar.kill()
        similar.wait()


def ranges(path: Path, register: Path) -> UserRanges:
    """The ranges of a state directory of that name."""
    return UserRanges(state(path, register), "sandboxes", (register,))


def place(path: Path, key: str) -> str:
    """Make the directory of a sandbox there."""
    (path / "sandboxes" / key).mkdir(parents=True)
    return key


def test_ranges_do_not_overlap_also_between_state_directories(tmp_path: Path, register: Path) -> None:
    firsts: list[int] = []
    for name in ("first", "second", "first", "second"):
        home = tmp_path / name
        firsts.append(ranges(home, register).allocate(place(home, f"key{len(firsts)}")))
    assert len({first // RANGE_USERS for first in firsts}) == len(firsts)
    assert all(first > FIRST_RANGE and first % RANGE_USERS == 0 for first in firsts)
    assert max(firsts) + RANGE_USERS <= FIRST_USER_ID


def test_the_range_that_owns_images_is_never_given_and_a_full_machine_says_so(tmp_path: Path, register: Path) -> None:
    home = tmp_path / "home"
    given = ranges(home, register)
    for number in range(1, RANGE_COUNT):
        given.allocate(place(home, f"key{number}"))
    with pytest.raises(SandboxUnavailable, match="ranges of users are in use"):
        given.allocate(place(home, "last"))
    assert not (register / "ranges/0").exists()


def test_a_range_is_free_when_its_sandbox_is_gone_and_not_before(tmp_path: Path, register: Path) -> None:
    home = tmp_path / "home"
    given = ranges(home, register)
    first = given.allocate(place(home, "living"))
    gone = given.allocate("never-made")
    (register / "ranges/last").write_text("0")
    assert given.allocate(place(home, "next")) == gone
    given.release(first, "another")
    (register / "ranges/last").write_text("0")
    assert given.allocate(place(home, "more")) not in (first, gone)
    given.release(first, "living")
    (register / "ranges/last").write_text("0")
    assert given.allocate(place(home, "again")) == first


def test_a_range_in_which_a_process_runs_is_not_given(tmp_path: Path, register: Path) -> None:
    given = ranges(tmp_path / "home", register)
    first = given.allocate("gone")
    with subprocess.Popen(["sleep", "60"], user=first) as process:
        (register / "ranges/last").write_text("0")
        assert given.allocate("other") != first
        process.kill()


def test_a_kept_sandbox_has_its_range_again_unless_another_has_it(tmp_path: Path, register: Path) -> None:
    home = tmp_path / "home"
    given = ranges(home, register)
    first = given.allocate(place(home, "kept"))
    home.rename(tmp_path / "moved")
    home = tmp_path / "moved"
    moved = ranges(home, register)
    moved.hold("kept", first)
    (register / "ranges" / str((first - FIRST_RANGE) // RANGE_USERS)).unlink()
    moved.hold("kept", first)
    with pytest.raises(SandboxUnavailable, match="belong to another sandbox"):
        moved.hold(place(home, "thief"), first)


def test_a_place_of_many_users_says_so_and_gives_them_back(homes: tuple[Home, Home]) -> None:
    home = homes[0]
    made = home.allocate(many_users=True)
    assert made.user_id is not None
    assert made.host_id(33) == made.user_id + 33
    home.keep(made)
    taken = home.take(made.key, find_hierarchies())
    assert taken is not None
    assert (taken.user_id, taken.users) == (made.user_id, RANGE_USERS)
    home.release(taken)
    assert not (REGISTERS[0] / "ranges" / str((made.user_id - FIRST_RANGE) // RANGE_USERS)).exists()


IN_CONTAINER = """
import sys
from pathlib import Path
from cove.errors import SandboxUnavailable
from cove.runtime.home import Home

home = Home(Path(sys.argv[1]))
home.open()
try:
    home.allocate()
except SandboxUnavailable as error:
    print(error.message, [*home.sandboxes.iterdir()])
"""


def test_root_of_a_namespace_that_lacks_the_users_is_told_so(other_home: Path) -> None:
    words = ["unshare", "--user", "--map-root-user", sys.executable, "-c", IN_CONTAINER, str(other_home)]
    end = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert "run Cove as another user of this container" in end.stdout
    assert end.stdout.endswith(" []\n")
