"""Allocate whole ranges of host users to sandboxes whose users are real. Blocks.

One register of the machine holds a file for each range in use: it names the state directory, by that one's own entry
in the register, and the sandbox. A range whose sandbox is gone is free, so a killed program leaves none behind. Range
0 is never given: it owns what images have on disk.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cove.core.users import FIRST_RANGE, RANGE_USERS, RANGES
from cove.errors import SandboxUnavailable
from cove.linux.file_lock import waiting_lock
from cove.runtime.user_ids import REGISTERS, UserIds, has_processes, open_register, owner_of, read_note, write_note


class UserRanges:
    """Ranges of one state directory, which `users` has entered in the register."""

    def __init__(self, users: UserIds, sandboxes: str, registers: tuple[Path, ...] = REGISTERS) -> None:
        """`sandboxes` is the directory of all sandboxes, within every state directory."""
        self._users = users
        self._sandboxes = sandboxes
        self._registers = registers

    def allocate(self, key: str) -> int:
        """Reserve a range that no sandbox of this machine has; returns its first user."""
        note = self._note(key)
        with self._register() as ranges:
            last = int(read_note(ranges / "last") or 0)
            for step in range(RANGES - 1):
                number = (last + step) % (RANGES - 1) + 1
                if self._is_free(ranges, number):
                    write_note(ranges / str(number), note)
                    write_note(ranges / "last", str(number))
                    return _first(number)
        raise SandboxUnavailable(f"all {RANGES - 1} ranges of users are in use: destroy some sandboxes on images")

    def hold(self, key: str, first: int) -> None:
        """Hold the range that a sandbox has had; SandboxUnavailable when another sandbox has it by now."""
        note = self._note(key)
        with self._register() as ranges:
            number = _number(first)
            noted = read_note(ranges / str(number))
            if noted != note:
                if not self._is_free(ranges, number):
                    raise SandboxUnavailable(
                        f"the users of the sandbox at {key} belong to another sandbox of this machine meanwhile: "
                        "its files were moved here, or its register was lost"
                    )
                write_note(ranges / str(number), note)

    def release(self, first: int, key: str) -> None:
        """Let another sandbox have it."""
        note = self._note(key)
        with self._register() as ranges:
            path = ranges / str(_number(first))
            if read_note(path) == note:
                path.unlink()

    def _note(self, key: str) -> str:
        return f"{self._users.number()}\n{key}"

    @contextmanager
    def _register(self) -> Iterator[Path]:
        register = open_register(self._registers)
        ranges = register / "ranges"
        with waiting_lock(register / "lock"):
            ranges.mkdir(mode=0o700, exist_ok=True)
            yield ranges

    def _is_free(self, ranges: Path, number: int) -> bool:
        """Return whether its sandbox is gone, and nothing runs as its first user: all that runs ends with that."""
        state, _, key = read_note(ranges / str(number)).partition("\n")
        home = owner_of(ranges.parent, state) if state else None
        is_there = home is not None and os.path.lexists(home / self._sandboxes / key)
        return not is_there and not has_processes(_first(number))


def _first(number: int) -> int:
    return FIRST_RANGE + number * RANGE_USERS


def _number(first: int) -> int:
    return (first - FIRST_RANGE) // RANGE_USERS
