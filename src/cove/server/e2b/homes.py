"""Users of a sandbox as E2B's protocol names them: their homes, and the names of owners."""

from contextlib import aclosing

from cove.core.users import MOST_BYTES
from cove.errors import FileNotFound, IsDirectory, NotDirectory, PermissionDenied
from cove.runtime.sandbox import Sandbox
from cove.server.e2b.protocol import HOME


async def home_of(sandbox: Sandbox, user: str | None) -> str:
    """Return where relative paths of a user begin; raises UserUnavailable."""
    if user is None:
        return HOME
    found = await sandbox.users.find(user)
    return HOME if found is None else found.home


class Names:
    """Names of numbers, as the sandbox's own /etc says: hostile text, of which one line per number counts."""

    def __init__(self, users: dict[int, str], groups: dict[int, str]) -> None:
        self._users = users
        self._groups = groups

    @classmethod
    async def of(cls, sandbox: Sandbox) -> "Names":
        """Read them."""
        return cls(await _read(sandbox, "/etc/passwd"), await _read(sandbox, "/etc/group"))

    def user(self, number: int) -> str:
        """Return the name of a user, or the number."""
        return self._users.get(number, str(number))

    def group(self, number: int) -> str:
        """Return the name of a group, or the number."""
        return self._groups.get(number, str(number))


async def _read(sandbox: Sandbox, path: str) -> dict[int, str]:
    try:
        async with aclosing(sandbox.files.read_stream(path, end=MOST_BYTES)) as chunks:
            text = b"".join([chunk async for chunk in chunks])
    except (FileNotFound, NotDirectory, IsDirectory, PermissionDenied):
        return {}
    lines = (line.split(":") for line in text.decode("utf-8", "replace").splitlines())
    return {int(line[2]): line[0] for line in lines if len(line) > 3 and line[2].isascii() and line[2].isdigit()}
