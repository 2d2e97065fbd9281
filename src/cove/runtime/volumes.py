"""Named volumes on disk: made, found, used and deleted, whatever program is killed meanwhile. All calls here block.

`volumes/NAME` has a record, the directory `data` or, sized by root, a file system in `disk.img`, and in `users` a file
for each sandbox that uses it, named by its key. A file whose sandbox is gone counts for nothing. A volume appears and
disappears by one rename: what is half made or half deleted has a name that begins with a dot, and is collected.
"""

import builtins
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cove.archive.remove_tree import remove_tree
from cove.core.identifier import new_identifier
from cove.errors import SandboxUnavailable, ValidationFailed, VolumeAlreadyExists, VolumeInUse, VolumeNotFound
from cove.linux.disk_usage import measure_disk
from cove.linux.file_lock import waiting_lock
from cove.local.state import replace_file
from cove.model import VolumeInfo
from cove.model.mount import check_volume_name
from cove.runtime.disk import ImageUnavailable, make_image, mount_again, mount_image, unmount
from cove.runtime.home import Home

_RECORD = "volume.json"
_DATA = "data"
_IMAGE = "disk.img"
_POINT = "disk"
_USERS = "users"
_BLOCK = 512
# What a file system needs for itself is more than this.
_LEAST_SIZE = 4 << 20


@dataclass(frozen=True, slots=True)
class UsedVolume:
    """A volume that a sandbox uses. `measured` is the size that nothing but measuring holds."""

    name: str
    data: Path
    owner: int | None
    measured: int | None


class Volumes:
    """The volumes of a state directory; of a tenant's, its own, which nobody else's names can meet."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.path / "volumes"
        self._prefix = f"{home.tenant}~" if home.tenant else ""

    def create(self, name: str, size: int | None) -> VolumeInfo:
        """Make a volume. Raises VolumeAlreadyExists; what fails leaves nothing."""
        check_volume_name(name)
        _check_size(size)
        self._path.mkdir(mode=0o700, exist_ok=True)
        building = self._path / f".new-{new_identifier()}"
        with self._changing():  # who collects meanwhile would take it for one that was left behind
            self._check_free(name)
            try:
                info = self._make(building, name, size)
                building.rename(self._place(name))
            except OSError as error:
                _remove(building)
                raise SandboxUnavailable(f"cannot make volume {name}: {error.strerror}") from error
        return info

    def _check_free(self, name: str) -> None:
        if self._place(name).exists():
            raise VolumeAlreadyExists(f"volume {name} exists already: choose another name, or delete it")

    def _make(self, building: Path, name: str, size: int | None) -> VolumeInfo:
        owner = self._home.volume_owner()
        building.mkdir(mode=0o700)
        (building / _USERS).mkdir(mode=0o700)
        has_image = size is not None and owner is not None and _make_disk(building, size, owner)
        if not has_image:
            _make_data(building / _DATA, owner)
        is_measured = size is not None and not has_image
        created_at, tenant = datetime.now(UTC), self._home.tenant or None
        info = VolumeInfo(name=name, created_at=created_at, size=size, is_measured=is_measured, owner=tenant)
        replace_file(building / _RECORD, msgspec.json.encode(info), durable=True)
        return info

    def get(self, name: str) -> VolumeInfo:
        """The facts of a volume, with what it holds. Raises VolumeNotFound."""
        info = self._read(name)
        if info is None:
            raise VolumeNotFound(f"there is no volume {name}")
        return msgspec.structs.replace(info, used_bytes=self._used_bytes(name))

    def list(self) -> builtins.list[VolumeInfo]:
        """All volumes, by name."""
        try:
            names = sorted(name for name in os.listdir(self._path) if not name.startswith("."))
        except FileNotFoundError:
            return []
        places = [self._path / name for name in names if name.startswith(self._prefix)]
        return [info for place in places if (info := _read(place)) is not None]

    def delete(self, name: str) -> None:
        """Remove a volume with all that is in it. Raises VolumeInUse, VolumeNotFound."""
        self.get(name)
        gone = self._path / f".deleted-{new_identifier()}"
        with self._changing():
            if users := self._users(self._place(name)):
                raise VolumeInUse(
                    f"volume {name} is used by {len(users)} sandboxes: destroy them, or remove it from their mounts"
                )
            with suppress(FileNotFoundError):  # somebody else was faster
                self._place(name).rename(gone)
        _remove(gone)

    def use(self, name: str, key: str) -> UsedVolume:
        """Let the sandbox with that key use a volume: nobody deletes it meanwhile. Raises VolumeNotFound."""
        check_volume_name(name)
        if self._read(name) is None:
            raise VolumeNotFound(f"there is no volume {name}: AsyncVolume.create({name!r}) makes it")
        with self._changing():
            info = self._read(name)
            if info is None:
                raise VolumeNotFound(f"there is no volume {name}")
            path = self._place(name)
            (path / _USERS / key).touch(mode=0o600)
            owner = self._home.volume_owner()
            if not (path / _IMAGE).exists():
                return UsedVolume(name, path / _DATA, owner, info.size)
            _mount(path)
            return UsedVolume(name, path / _POINT / _DATA, owner, None)

    def release(self, name: str, key: str) -> None:
        """The sandbox uses it no longer; after the last, its file system is taken away."""
        with self._changing():
            (self._place(name) / _USERS / key).unlink(missing_ok=True)
            self._rest(self._place(name))

    def release_all(self, key: str, *, but: Collection[str] = ()) -> None:
        """The sandbox with that key uses nothing, or nothing but these."""
        for info in self.list():
            if info.name not in but and (self._place(info.name) / _USERS / key).exists():
                self.release(info.name, key)

    def rest(self, name: str, key: str) -> None:
        """The sandbox with that key has stopped: it needs no file system until it is started again."""
        with self._changing():
            self._rest(self._place(name), stopped=key)

    def collect(self) -> None:
        """Remove what programs that were killed left behind."""
        if not self._path.exists():
            return
        with self._changing():
            for path in self._path.glob(".*-*"):
                _remove(path)
            for place in self._path.glob("[!.]*"):
                self._rest(place)

    def _place(self, name: str) -> Path:
        return self._path / f"{self._prefix}{check_volume_name(name)}"

    def _rest(self, place: Path, stopped: str | None = None) -> None:
        """Forget users that are gone; take the file system away when nobody who lives uses it."""
        living = [key for key in self._users(place) if key != stopped and self._home.is_running(key)]
        if not living:
            with suppress(ImageUnavailable):
                unmount(str(place / _POINT))

    def _users(self, place: Path) -> builtins.list[str]:
        """The keys of the sandboxes that use it, running or stopped."""
        users = []
        with suppress(FileNotFoundError):
            for path in (place / _USERS).iterdir():
                if self._home.is_used(path.name):
                    users.append(path.name)
                else:
                    path.unlink(missing_ok=True)
        return users

    def _read(self, name: str) -> VolumeInfo | None:
        return _read(self._place(name))

    def _used_bytes(self, name: str) -> int | None:
        path = self._place(name)
        with suppress(FileNotFoundError):
            image = path / _IMAGE
            return image.stat().st_blocks * _BLOCK if image.exists() else measure_disk([str(path / _DATA)]).bytes
        return None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with waiting_lock(self._home.path / "volumes.lock"):
            yield


def _read(place: Path) -> VolumeInfo | None:
    try:
        return msgspec.json.decode((place / _RECORD).read_bytes(), type=VolumeInfo)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise SandboxUnavailable(f"the record of volume {place.name} cannot be read: {error}") from None


def _check_size(size: object) -> None:
    if size is None:
        return
    if not isinstance(size, int) or isinstance(size, bool) or size < _LEAST_SIZE:
        raise ValidationFailed(f"the size of a volume is a number of bytes, at least {_LEAST_SIZE}, not {size!r}")


def _make_data(path: Path, owner: int | None) -> None:
    """Make the directory that sandboxes see, for all their users to enter; on the host nobody passes those above."""
    path.mkdir(mode=0o700)
    path.chmod(0o755)
    if owner is not None:
        os.chown(path, owner, owner)


def _make_disk(path: Path, size: int, owner: int) -> bool:
    """Make its file system; False where this machine cannot, so that measuring has to do."""
    point = path / _POINT
    point.mkdir(mode=0o700)
    try:
        make_image(str(path / _IMAGE), size, None)
        mount_image(str(path / _IMAGE), str(point))
        try:
            _make_data(point / _DATA, owner)
        finally:
            unmount(str(point))
    except ImageUnavailable:
        (path / _IMAGE).unlink(missing_ok=True)
        return False
    return True


def _mount(path: Path) -> None:
    point = path / _POINT
    if os.path.ismount(point):
        return
    try:
        mount_again(str(path / _IMAGE), str(point))
    except ImageUnavailable as error:
        raise SandboxUnavailable(f"the disk of volume {path.name} cannot be used: {error}") from error


def _remove(path: Path) -> None:
    with suppress(ImageUnavailable):
        unmount(str(path / _POINT))
    remove_tree(str(path))
