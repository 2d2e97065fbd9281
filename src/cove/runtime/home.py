"""Cove's state on disk: where a sandbox's directories are, who owns them, and what a crash left behind.

Each sandbox has a directory named by a random key and holds a lock on it while it lives: a directory whose
lock is free belongs to a program that is gone. It is removed, unless it has a record: a server's sandbox outlives
its runtime. All calls here block; the runtime makes them in a thread.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from cove import agent, executor, shell
from cove.core.identifier import new_identifier
from cove.core.jail import SYNTHETIC_ETC, place_mark
from cove.errors import SandboxUnavailable
from cove.linux import remove_tree as remove_tree_module
from cove.linux.cgroup import Group, Hierarchies
from cove.linux.file_lock import make_locked, try_lock
from cove.linux.forking import close_in_forked_child
from cove.linux.interpreter import Interpreter
from cove.linux.pidfd import start_time
from cove.linux.remove_tree import remove_tree
from cove.linux.strays import end_strays
from cove.runtime.disk import detach_disk
from cove.runtime.groups import SandboxGroups

FIRST_USER_ID = 2_000_000_000
USER_IDS = 1_000_000
RECORD = "sandbox.json"
SOCKET = "runtime.sock"
LOCK = "lock"
USER = "user"

_AGENT_MODULES = (
    *("files", "init", "kernel", "launcher", "protocol"),
    *("archive", "compressed", "content", "errand", "fingerprint", "pattern", "tar", "tree", "unpacking", "watch"),
)
PROLOGUE = "session.bash"
PACKAGES = "node_modules"
_COMPILE = "import py_compile, sys; [py_compile.compile(s, s + 'c', 'cove/' + s, True) for s in sys.argv[1:]]"


def default_home() -> Path:
    """$COVE_HOME, or the usual place for this user."""
    if configured := os.environ.get("COVE_HOME"):
        return Path(configured).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/cove")
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data) / "cove"


@dataclass(frozen=True, slots=True)
class Place:
    """One sandbox's directory; `lock` is held open as long as it is in use."""

    key: str
    path: Path
    lock: FileIO
    user_id: int | None

    @property
    def workspace(self) -> Path:
        """Bound at /workspace."""
        return self.path / "workspace"

    @property
    def home(self) -> Path:
        """Bound at /home/user."""
        return self.path / "home"

    @property
    def tmp(self) -> Path:
        """Bound at /tmp."""
        return self.path / "tmp"

    @property
    def shell(self) -> Path:
        """Bound read-only for the sandbox: where its sessions' shells are spoken to."""
        return self.path / "shell"

    @property
    def logs(self) -> Path:
        """Where output goes that does not fit in memory."""
        return self.path / "logs"


class Home:
    """The state directory of this user."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sandboxes = path / "sandboxes"
        self._is_root = os.geteuid() == 0

    def open(self) -> None:
        """Make the directories; as root they must be passable for the sandboxes' users."""
        try:
            self._make_directories()
        except OSError as error:
            raise SandboxUnavailable(
                f"cannot keep state in {self.path}: {error.strerror}. Set COVE_HOME to a directory you can write."
            ) from error

    def _make_directories(self) -> None:
        mode = 0o711 if self._is_root else 0o700
        for path in (
            self.path,
            self.sandboxes,
            self.path / "users",
            self.path / "agent",
            self.path / "executor",
            self.path / "etc",
        ):
            path.mkdir(mode=mode, parents=True, exist_ok=True)
            if self._is_root:
                path.chmod(mode)
        if self._is_root and not is_passable(self.path):
            raise SandboxUnavailable(
                f"{self.path} lies below a directory that other users cannot enter: sandboxes run as users of "
                "their own and must reach it. Set COVE_HOME to a directory all of whose parents have mode o+x."
            )
        for name, content in SYNTHETIC_ETC.items():
            write_once(self.path / "etc" / name, content.encode())

    def prepare_agent(self, interpreter: Interpreter) -> Path:
        """The agent, compiled for that interpreter; made once for every version of either."""
        source = Path(agent.__file__).parent
        files = {f"{name}.py": (source / f"{name}.py").read_bytes() for name in _AGENT_MODULES}
        files["remove_tree.py"] = Path(remove_tree_module.__file__).read_bytes()
        files[PROLOGUE] = (Path(shell.__file__).parent / PROLOGUE).read_bytes()
        version = ".".join(map(str, interpreter.version))
        digest = hashlib.sha256(b"\0".join([interpreter.path.encode(), version.encode(), *files.values()]))
        target = self.path / "agent" / digest.hexdigest()[:16]
        if not target.exists():
            self._compile_agent(interpreter, files, target)
        return target

    def prepare_executor(self) -> Path:
        """What runs code contexts, where every sandbox can read it; made once for every version."""
        source = Path(executor.__file__).parent
        digest = hashlib.sha256()
        for path in sorted(path for path in source.iterdir() if path.is_file()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        packages = source / PACKAGES
        digest.update(b"%d" % (packages.stat().st_mtime_ns if packages.exists() else 0))
        target = self.path / "executor" / digest.hexdigest()[:16]
        if not target.exists():
            building = target.with_name(f".{new_identifier()}")
            shutil.copytree(source, building, ignore=shutil.ignore_patterns("__pycache__"))
            for path in (building, *building.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
            self._put_in_place(building, target)
        return target

    def _put_in_place(self, building: Path, target: Path) -> None:
        try:
            building.rename(target)
        except OSError:
            remove_tree(str(building))  # another program was first

    def _compile_agent(self, interpreter: Interpreter, files: dict[str, bytes], target: Path) -> None:
        building = target.with_name(f".{new_identifier()}")
        building.mkdir(mode=0o755)
        building.chmod(0o755)
        for name, content in files.items():
            (building / name).write_bytes(content)
        sources = [name for name in files if name.endswith(".py")]
        subprocess.run([interpreter.path, "-I", "-S", "-c", _COMPILE, *sources], cwd=building, check=True, timeout=60)
        for name in sources:
            (building / name).unlink()  # an import would prefer it to the compiled one
        for path in building.iterdir():
            path.chmod(0o644)
        self._put_in_place(building, target)

    def allocate(self) -> Place:
        """A new place with its own lock and, as root, its own user."""
        key = new_identifier()
        path = self.sandboxes / key
        with self._changing_places():
            path.mkdir(mode=0o711)
            path.chmod(0o711)
            lock = make_locked(path / LOCK)
        _sign(lock)
        place = Place(key, path, lock, self._allocate_user(key) if self._is_root else None)
        try:
            self._furnish(place)
        except OSError as error:
            self.release(place)
            raise SandboxUnavailable(f"cannot prepare {path}: {error.strerror}") from error
        return place

    def take(self, key: str, hierarchies: Hierarchies) -> Place | None:
        """A place that was kept, as its files were left and with nothing else in it; None while another has it."""
        place = self._lock(key, hierarchies)
        if place is not None:
            _sign(place.lock)
            self.refurnish(place)
        return place

    def remove(self, key: str, hierarchies: Hierarchies) -> None:
        """Remove a place that was kept; one that another has is left to that one."""
        place = self._lock(key, hierarchies)
        if place is not None:
            place.lock.truncate(0)  # whoever ends the holder of this lock must not end a program that only removes
            self.release(place)

    def _lock(self, key: str, hierarchies: Hierarchies) -> Place | None:
        path = self.sandboxes / key
        with self._changing_places():
            lock = try_lock(path / LOCK)
        if lock is None:
            return None
        _end_groups(hierarchies, key)
        (path / SOCKET).unlink(missing_ok=True)
        return Place(key, path, lock, self._user_of(key) if self._is_root else None)

    def keep(self, place: Place) -> None:
        """Let go of the place; its files stay for whoever takes it again."""
        place.lock.close()

    def _furnish(self, place: Place) -> None:
        for directory in (place.workspace, place.home, place.tmp):
            directory.mkdir(mode=0o700)
            if place.user_id is not None:
                os.chown(directory, place.user_id, place.user_id)
        if place.user_id is not None:
            (place.path / USER).write_text(str(place.user_id))
        self._furnish_runtime(place)

    def _furnish_runtime(self, place: Place) -> None:
        place.logs.mkdir(mode=0o700)
        place.shell.mkdir(mode=0o711)
        place.shell.chmod(0o711)

    def refurnish(self, place: Place) -> None:
        """Remove what belonged to sessions and processes that have ended with their jail."""
        remove_tree(str(place.logs))
        remove_tree(str(place.shell))
        self._furnish_runtime(place)

    def release(self, place: Place) -> None:
        """Remove the place with all that is in it; its user can be used again afterwards."""
        (place.path / RECORD).unlink(missing_ok=True)
        detach_disk(place.path)
        for entry in place.path.iterdir() if place.path.exists() else ():
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(str(entry))
        with self._changing_places():
            remove_tree(str(place.path))
        if place.user_id is not None:
            (self.path / "users" / str(place.user_id)).unlink(missing_ok=True)
        place.lock.close()

    def collect(self, hierarchies: Hierarchies) -> int:
        """Remove what programs that are gone left behind; returns how many places that were."""
        collected = 0
        for path in self.sandboxes.iterdir():
            if (path / RECORD).exists():
                self._tidy(path, hierarchies)
                continue
            with self._changing_places():
                lock = try_lock(path / LOCK)
            if lock is not None:
                _end_groups(hierarchies, path.name)
                groups = [Group(os.path.join(tree, path.name)) for tree in hierarchies.all]
                if sum(group.remove() for group in groups) < len(groups):
                    lock.close()  # its last processes are just ending: the next program collects it
                    continue
                self.release(Place(path.name, path, lock, self._user_of(path.name)))
                collected += 1
        with self._changing_places():
            for path in self.sandboxes.iterdir():
                if not (path / LOCK).exists():
                    detach_disk(path)
                    remove_tree(str(path))  # its program was killed while it made or removed it
        if self._is_root:
            self._take_back_users()
        return collected

    def _tidy(self, path: Path, hierarchies: Hierarchies) -> None:
        """End what a killed runtime left running; the files are still wanted."""
        with self._changing_places():
            lock = try_lock(path / LOCK)
            if lock is not None:
                _end_groups(hierarchies, path.name)
                (path / SOCKET).unlink(missing_ok=True)
                lock.close()

    def _user_of(self, key: str) -> int | None:
        users = self.path / "users"
        noted = _read(self.sandboxes / key / USER)
        for reservation in [users / noted] if noted else users.iterdir():
            if _read(reservation) == key:
                return int(reservation.name)
        return None

    @contextmanager
    def _changing_places(self) -> Iterator[None]:
        """Held while a place exists without its lock: a place without one is otherwise left over."""
        lock = os.open(self.path / "places.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _changing_users(self) -> Iterator[int]:
        """Held while user ids are given or taken back; the file says which was given last."""
        lock = os.open(self.path / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)

    def _first_offset(self) -> int:
        """Where a state directory begins to give ids: somewhere else than others that share the range."""
        found = self.path.stat()
        digest = hashlib.sha256(b"%d:%d" % (found.st_dev, found.st_ino)).digest()
        return int.from_bytes(digest[:8], "big") % USER_IDS

    def _take_back_users(self) -> None:
        """Remove the reservations whose sandbox is gone: its program was killed while it released them."""
        with self._changing_users():
            for reservation in (self.path / "users").iterdir():
                key = _read(reservation)
                if not key or not (self.sandboxes / key).exists():
                    reservation.unlink(missing_ok=True)

    def _allocate_user(self, key: str) -> int:
        """The next user id that no living sandbox has; the file that reserves it names the sandbox."""
        users = self.path / "users"
        with self._changing_users() as lock:
            last = int(os.pread(lock, 20, 0) or self._first_offset())
            for step in range(1, USER_IDS):
                offset = (last + step) % USER_IDS
                reservation = users / str(FIRST_USER_ID + offset)
                if not reservation.exists():
                    reservation.write_text(key)
                    os.pwrite(lock, b"%-20d" % offset, 0)
                    return FIRST_USER_ID + offset
        raise SandboxUnavailable(f"all {USER_IDS} user ids of {self.path} are in use: destroy some sandboxes")


def is_passable(path: Path) -> bool:
    """Whether other users can enter this directory and all above it."""
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))


def write_once(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a small world-readable file whose content never changes, atomically."""
    if path.exists() and path.read_bytes() == content:
        return
    building = path.with_name(f".{new_identifier()}")
    building.write_bytes(content)
    building.chmod(mode)
    building.rename(path)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""  # never made, or released meanwhile by another program


def _sign(lock: FileIO) -> None:
    """Say in the lock who holds it, so that a holder that does not answer can be ended."""
    lock.truncate(0)
    os.pwrite(lock.fileno(), b"%d %d" % (os.getpid(), start_time(os.getpid())), 0)
    close_in_forked_child(lock)


def _end_groups(hierarchies: Hierarchies, key: str) -> None:
    trees = [Group(os.path.join(tree, key)) for tree in hierarchies.all]
    SandboxGroups(trees[0] if hierarchies.unified is not None else None, trees).remove()
    end_strays(place_mark(key))  # a bwrap that lost its parent before the agent entered its groups
