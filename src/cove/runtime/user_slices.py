"""Allocate slices of a plain user's subordinate users to sandboxes. Blocks.

One register of the user, below the home directory that the system knows, holds a file for each slice in use: it names
the sandbox's directory. So slices of several state directories never overlap, and that of a sandbox which is gone is
free again, whoever was killed.
"""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cove.errors import SandboxUnavailable
from cove.linux.file_lock import waiting_lock
from cove.linux.subordinate import SLICE_USERS, Slice, Subordinates, find_subordinates
from cove.runtime.slices import SliceFiles
from cove.runtime.user_ids import has_processes, read_note, write_note

_REGISTER = ".local/state/cove-users"


class UserSlices:
    """Slices of this user, for the sandboxes of one state directory."""

    def __init__(self, sandboxes: Path) -> None:
        self._sandboxes = sandboxes
        self._found: Subordinates | None = None
        self._was_tried = False

    def allocate(self, key: str) -> Slice | None:
        """Reserve a slice that no sandbox of this user has; None where there is none, or none can be mapped."""
        found = self._subordinates()
        if found is None:
            return None
        with suppress(OSError), self._register() as register:  # a home directory that cannot be written
            for number in range(found.slices):
                if self._is_free(register, found.slice(number)):
                    write_note(register / str(number), self._note(key))
                    return found.slice(number)
        return None

    def hold(self, key: str, slice: Slice) -> None:
        """Hold the slice that a sandbox has had; SandboxUnavailable when another sandbox has it by now."""
        found = self._subordinates()
        if found is None or slice.number >= found.slices or found.slice(slice.number) != slice:
            raise SandboxUnavailable(
                f"the users of the sandbox at {key} are no subordinate users of yours any more: see /etc/subuid"
            )
        with self._register() as register:
            if read_note(register / str(slice.number)) != self._note(key):
                if not self._is_free(register, slice):
                    raise SandboxUnavailable(
                        f"the users of the sandbox at {key} belong to another sandbox of yours meanwhile: its files "
                        "were moved here, or the register was lost"
                    )
                write_note(register / str(slice.number), self._note(key))

    def release(self, key: str, slice: Slice) -> None:
        """Let another sandbox have it."""
        with self._register() as register:
            path = register / str(slice.number)
            if read_note(path) == self._note(key):
                path.unlink()

    def _subordinates(self) -> Subordinates | None:
        """Return the numbers of this user, if they can be mapped: tried once."""
        if not self._was_tried:
            self._was_tried = True
            found = find_subordinates()
            self._found = found if found is not None and explain_refusal(found) is None else None
        return self._found

    def _note(self, key: str) -> str:
        return str(self._sandboxes.resolve() / key)

    @contextmanager
    def _register(self) -> Iterator[Path]:
        register = Path(pwd.getpwuid(os.geteuid()).pw_dir) / _REGISTER
        register.mkdir(mode=0o700, parents=True, exist_ok=True)
        with waiting_lock(register / "lock"):
            yield register

    def _is_free(self, register: Path, slice: Slice) -> bool:
        """Return whether its sandbox is gone, and nothing runs as one of its users."""
        noted = read_note(register / str(slice.number))
        is_there = bool(noted) and os.path.lexists(noted)
        return not is_there and not any(map(has_processes, range(slice.users, slice.users + SLICE_USERS - 1)))


def explain_refusal(found: Subordinates) -> str | None:
    """Try to map the first slice; returns why the machine refuses."""
    try:
        with SliceFiles(found.slice(0)).namespace(None):
            return None
    except (SandboxUnavailable, OSError) as error:
        return str(error)
