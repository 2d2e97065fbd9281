"""The state directory: where it is, and how its files are written. Blocks."""

import os
from pathlib import Path

from cove.errors import SandboxUnavailable

# Of the server that runs on a state directory: its own directory, its lock, and where it listens.
SERVER_DIRECTORY, LOCK_FILE, URL_FILE = "server", "lock", "url"


def default_home() -> Path:
    """$COVE_HOME, or the usual place for this user."""
    if configured := os.environ.get("COVE_HOME"):
        return Path(configured).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cove")
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    if not os.path.isabs(data):
        raise SandboxUnavailable("your home directory is not known: set HOME, or COVE_HOME to a directory of your own")
    return Path(data) / "cove"


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Write and rename: a reader sees the old content or the new one, whole. One writer at a time.

    What fails, as on a full disk, leaves the old one.

    With `durable` the new one is there after a crash of the machine too. That waits for the disk, which may be busy
    with what sandboxes write.
    """
    building = path.with_name(f".{path.name}.new")
    try:
        _write_file(building, content, mode, durable=durable)
        building.rename(path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def _write_file(path: Path, content: bytes, mode: int, *, durable: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(content)
        if durable:
            file.flush()
            os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Let the names in a directory survive a crash of the machine: fsync(2)."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
