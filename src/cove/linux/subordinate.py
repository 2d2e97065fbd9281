"""Map subordinate users of a plain user into user namespaces: subuid(5), newuidmap(1). Blocks.

A slice is what one sandbox has of them. Root inside is the plain user; the last number is `nobody`, wherever that is.
"""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SLICE_USERS = 2048
NOBODY = 65534
_SEARCHED = "/usr/bin:/bin:/usr/local/bin"
_PROGRAMS = {"uid": "newuidmap", "gid": "newgidmap"}
_FILES = {"uid": Path("/etc/subuid"), "gid": Path("/etc/subgid")}
_SECONDS = 10.0
# What Debian's adduser(8) begins with, and gives to each user.
_FIRST, _USUAL = 100_000, 65_536
# RLIMIT_NPROC counts for each user namespace: user_namespaces(7).
_OLDEST = (5, 14)

Extent = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: the host numbers of user 1 and of group 1 inside; the others follow them."""

    number: int
    users: int
    groups: int

    def host_user(self, inside: int) -> int:
        """Return the number on the host of a user inside, who is not root."""
        return self.users + _offset(inside)

    def host_group(self, inside: int) -> int:
        """Return the same of a group."""
        return self.groups + _offset(inside)


@dataclass(frozen=True, slots=True)
class Range:
    """Subordinate numbers: so many from the first on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Subordinates:
    """The numbers that the user has."""

    users: Range
    groups: Range

    @property
    def slices(self) -> int:
        """Return how many slices they have."""
        return min(self.users.count, self.groups.count) // SLICE_USERS

    def slice(self, number: int) -> Slice:
        """Return one of them."""
        return Slice(number, self.users.first + number * SLICE_USERS, self.groups.first + number * SLICE_USERS)


def fits(inside: int) -> bool:
    """Return whether a slice has that number."""
    return 0 <= inside < SLICE_USERS - 1 or inside == NOBODY


def find_subordinates() -> Subordinates | None:
    """Find the numbers of this user; None where there are too few, or nothing can map them."""
    if explain_missing() is not None:
        return None
    users, groups = _find_range("uid"), _find_range("gid")
    return None if users is None or groups is None else Subordinates(users, groups)


def explain_missing() -> tuple[str, str] | None:
    """Return what is missing, and the command that brings it; None where nothing is."""
    if _kernel_version() < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return f"only Linux {oldest} counts the processes of all users of a sandbox", "sudo apt-get dist-upgrade"
    for program in _PROGRAMS.values():
        if shutil.which(program, path=_SEARCHED) is None:
            return f"{program} is not installed", "sudo apt-get install uidmap"
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()} has no name in /etc/passwd", "run Cove as a user who has one"
    lacking = [kind for kind in _FILES if (found := _find_range(kind)) is None or found.count < SLICE_USERS]
    if not lacking:
        return None
    numbers = _find_unused()
    options = " ".join(f"--add-sub{kind}s {numbers}" for kind in lacking)
    files = " and ".join(str(_FILES[kind]) for kind in lacking)
    return f"{name} has no {SLICE_USERS} numbers in {files}", f"sudo usermod {options} {name}"


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(word) for word in os.uname().release.replace("-", ".").split(".")[:2] if word.isdecimal())


def _find_range(kind: str) -> Range | None:
    """Return the largest range of the user in a file of subuid(5)."""
    user = os.geteuid()
    try:
        names = (str(user), pwd.getpwuid(user).pw_name)
    except KeyError:
        return None
    ranges = [found for name, found in _read_ranges(kind) if name in names]
    return max(ranges, key=lambda each: each.count, default=None)


def _find_unused() -> str:
    """Return as many numbers as Debian gives to a user, after all that anybody has."""
    ends = [found.first + found.count for kind in _FILES for _, found in _read_ranges(kind)]
    first = max([_FIRST, *ends])
    return f"{first}-{first + _USUAL - 1}"


def _read_ranges(kind: str) -> list[tuple[str, Range]]:
    """Read a file of subuid(5): names, or numbers, of users, and what they have."""
    try:
        lines = _FILES[kind].read_text(errors="replace").splitlines()
    except OSError:
        return []
    fields = [line.split(":") for line in lines]
    return [
        (each[0], Range(int(each[1]), int(each[2])))
        for each in fields
        if len(each) == 3 and each[1].isdecimal() and each[2].isdecimal()
    ]


def map_slice(pid: int, slice: Slice) -> None:
    """Map a slice into the new user namespace of a child of ours that waits. Raises OSError."""
    for kind, first, own in (("gid", slice.groups, os.getegid()), ("uid", slice.users, os.geteuid())):
        program = shutil.which(_PROGRAMS[kind], path=_SEARCHED)
        if program is None:
            raise FileNotFoundError(2, "not installed", _PROGRAMS[kind])
        words = [str(number) for extent in extents(own, first) for number in extent]
        try:
            end = subprocess.run(
                [program, str(pid), *words], capture_output=True, timeout=_SECONDS, check=False, env={}
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(110, "took too long", program) from None
        if end.returncode:
            raise PermissionError(1, end.stderr.decode("utf-8", "replace").strip()[-200:] or "refused", program)


def extents(own: int, first: int) -> list[Extent]:
    """Return the map of a slice: root, everybody else, nobody."""
    return [(0, own, 1), (1, first, SLICE_USERS - 2), (NOBODY, first + SLICE_USERS - 2, 1)]


def _offset(inside: int) -> int:
    return SLICE_USERS - 2 if inside == NOBODY else inside - 1
