"""Users of a sandbox by name: who a single call is made as."""

import os
from collections.abc import Callable
from dataclasses import replace

from cove.core.jail import USER, USER_ID
from cove.core.users import MOST_BYTES, User, find_user
from cove.errors import FileNotFound, UserUnavailable, ValidationFailed
from cove.layers.record import System
from cove.linux.subordinate import NOBODY, SLICE_USERS
from cove.local.threads import close_in_thread, finished
from cove.model import SandboxUsers
from cove.runtime.file_access import FileAccess
from cove.runtime.file_content import read_range


def has_all(_: int) -> bool:
    """Return whether a range has that number: it has all."""
    return True


class Users:
    """Finds users in the sandbox's own /etc/passwd, as it is now. What that says is untrusted."""

    def __init__(
        self,
        system: System | None,
        access: FileAccess,
        *,
        has_users: bool,
        has: Callable[[int], bool] = has_all,
    ) -> None:
        """`access` is root's. Without `has_users` the sandbox has one user. `has` says which numbers it has."""
        self._system = system
        self._access = access
        self._has_users = has_users
        self._has = has

    @property
    def kind(self) -> SandboxUsers:
        """Say what users there are."""
        if self._has_users:
            return SandboxUsers.REAL
        is_root = self._system is not None and self._system.user_id == 0
        return SandboxUsers.EMULATED_ROOT if is_root else SandboxUsers.ONE

    async def find(self, text: str) -> User | None:
        """Find a user; None for the one that the sandbox has alone. Raises UserUnavailable."""
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValidationFailed(f"user must be a name or a number of the sandbox's, not {text!r}")
        if not self._has_users:
            self._check_own(text)
            return None
        passwd, group = await self._read(b"/etc/passwd"), await self._read(b"/etc/group")
        try:
            return self._checked(find_user(passwd, group, text))
        except ValidationFailed as error:
            raise UserUnavailable(error.message) from None

    def _checked(self, user: User) -> User:
        if not self._has(user.id) or not self._has(user.group):
            raise UserUnavailable(
                f"{user.id}:{user.group} is not among the users that this sandbox has, 0 to {SLICE_USERS - 2} and "
                f"{NOBODY}: run Cove as root to have all"
            )
        return replace(user, groups=tuple(each for each in user.groups if self._has(each)))

    def _check_own(self, text: str) -> None:
        system = self._system
        own = (USER, str(USER_ID)) if system is None else (system.user, str(system.user_id))
        if text in own:
            return
        if system is None:
            raise UserUnavailable(
                f"on the host's system a sandbox has one user, {USER}: create it with an image to have {text!r}"
            )
        raise UserUnavailable(
            f"this sandbox has one user, {system.user}, because Cove cannot map others here: run Cove as root, or see "
            f"`cove doctor` for subordinate users, to have {text!r} for one call; or create a sandbox with "
            f"user={text!r}"
        )

    async def _read(self, path: bytes) -> bytes:
        try:
            found = await self._access.read(path)
        except FileNotFound:
            return b""
        if isinstance(found, bytes):
            return found
        try:
            return await finished(read_range, found, 0, min(os.fstat(found).st_size, MOST_BYTES))
        finally:
            close_in_thread([found])


def environment_of(user: User | None) -> dict[str, str]:
    """Return the variables that tell a program whose it is."""
    return {} if user is None else {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
