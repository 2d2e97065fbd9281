"""One bucket of a sandbox: an rclone outside that serves it or, where there is no FUSE, copies it in and out.

Theory of operation. The bucket is looked into first, so that a wrong name or key fails the call. Then rclone mounts it
in a jail of its own; the mount is cloned from there and attached to the sandbox. Nothing of ours ever touches a file in
it: who waits for rclone is what runs inside. rclone answers within seconds even when the endpoint does not. When rclone
dies, the kernel makes an I/O error of every access. What was written is in its cache, at the place of the sandbox,
until it is sent: `close` waits for that, and a later rclone goes on where a killed one was.

Without FUSE, a directory in the place is filled from the bucket, attached, and copied back by `sync` and `close`.
"""

import asyncio
import hashlib
import logging
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from cove.attach import CloneTree
from cove.core.bucket import MOUNT_POINT, RcloneJail, copy_command, environment, list_command, mount_command
from cove.errors import CoveError, PermissionDenied, SandboxUnavailable, ValidationFailed
from cove.local.state import replace_file
from cove.local.threads import in_starter_thread, in_thread, start_in_thread, start_transfer
from cove.model import BucketMount
from cove.runtime.home import HostUser, Place
from cove.runtime.machine import Machine
from cove.runtime.mount_trees import clone_inside
from cove.runtime.rclone import Rclone, find_fuse, start_rclone, wait_until_mounted
from cove.tasks import settled

_SEARCHED = "/usr/bin:/bin"
_LIST_SECONDS = 20.0
_COPY_SECONDS = 600.0
_SEND_SECONDS = 60.0
_END_SECONDS = 5.0
_LOOK_SECONDS = 0.05

Clone = Callable[[str, bool], Awaitable[int]]

log = logging.getLogger("cove.runtime")


class Bucket:
    """A bucket from `open` to `close`, for one user. `hosts` are names that its rclone may resolve; None for all."""

    def __init__(
        self,
        machine: Machine,
        place: Place,
        user: HostUser,
        mount: BucketMount,
        credentials: str | None,
        hosts: str | None,
        most_bytes: int | None,
        clone: Clone,
    ) -> None:
        self._machine = machine
        self._place = place
        self._user = user
        self._mount = mount
        self._credentials = credentials
        self._hosts = hosts
        self._most_bytes = most_bytes
        self._clone = clone
        self._above = place.path / "buckets"
        self._path = self._above / hashlib.sha256(mount.target.encode()).hexdigest()[:16]
        self._serving: Rclone | None = None
        self.copied_because: str | None = None
        self.failure: str | None = None

    async def open(self) -> int:
        """Start it; returns its detached tree, which the caller closes."""
        await in_thread(self._prepare)
        await self._look()
        fuse = await in_thread(find_fuse, self._user, self._above)
        reason = "/dev/fuse cannot be opened by the sandbox's user"
        if fuse is not None:
            try:
                return await self._serve(fuse)
            except SandboxUnavailable as error:
                reason = error.message
        self.copied_because = reason
        await self._copy(outward=False)
        return await self._clone(str(self._path / "data"), self._mount.read_only)

    def _prepare(self) -> None:
        if shutil.which("rclone", path=_SEARCHED) is None:
            raise SandboxUnavailable("buckets need rclone, which is not installed: `apt install rclone fuse3`")
        for path in (self._above, self._path, *(self._path / name for name in ("cache", "data"))):
            path.mkdir(mode=0o700, exist_ok=True)
            if self._user.id is not None and self._user.group is not None:
                os.chown(path, self._user.id, self._user.group, follow_symlinks=False)
        if self._hosts is not None:
            replace_file(self._path / "hosts", self._hosts.encode(), mode=0o644)

    def _jail(self, *, directory: bool = False, fuse: str | None = None) -> RcloneJail:
        host = self._machine.host(self._place)
        return RcloneJail(
            root_links=host.root_links,
            root_directories=host.root_directories,
            directory=str(self._path / "data") if directory else None,
            cache=None if fuse is None else str(self._path / "cache"),
            fuse=fuse,
            hosts=None if self._hosts is None else str(self._path / "hosts"),
        )

    async def _start(self, jail: RcloneJail, command: list[str]) -> Rclone:
        env = environment(self._mount, self._credentials)
        starting = in_starter_thread(
            start_rclone, self._machine, self._place, self._user, jail, command, env, self._credentials
        )
        return await settled(starting, discard=Rclone.close)

    async def _run(self, jail: RcloneJail, command: list[str], seconds: float) -> str | None:
        """Run it to its end, or for so long; returns why it failed."""
        started = await self._start(jail, command)
        try:
            ended = await settled(start_transfer(started.wait, seconds), on_cancel=started.kill)
        finally:
            code = await settled(start_in_thread(started.close))
        if not ended:
            return f"it took longer than {seconds:g} s"
        return None if code == 0 else started.message

    async def _look(self) -> None:
        jail = await in_thread(self._jail)
        reason = await self._run(jail, list_command(self._mount), _LIST_SECONDS)
        if reason is None:
            return
        if "AccessDenied" in reason or "Forbidden" in reason or "InvalidAccessKeyId" in reason:
            raise PermissionDenied(f"{self._mount.url}: the endpoint refuses these credentials: {reason}")
        if "NoSuchBucket" in reason or "directory not found" in reason:
            raise ValidationFailed(f"{self._mount.url}: there is no such bucket at {self._mount.endpoint}")
        raise SandboxUnavailable(f"{self._mount.url}: {self._mount.endpoint} cannot be used: {reason}")

    async def _serve(self, fuse: str) -> int:
        jail = await in_thread(lambda: self._jail(fuse=fuse))
        started = await self._start(jail, mount_command(self._mount))
        try:
            if not await in_thread(wait_until_mounted, started):
                raise SandboxUnavailable(f"rclone cannot mount here: {started.message}")
            action = CloneTree(MOUNT_POINT, self._mount.read_only, is_inside=True)
            tree = await clone_inside(self._machine, started.target, action)
        except BaseException:
            await settled(start_in_thread(started.close))
            raise
        self._serving = started
        self._watch(started)
        return tree

    def _watch(self, started: Rclone) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(started.errors, started.read_errors)
        loop.add_reader(started.pidfd, self._died)

    def _unwatch(self, started: Rclone) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(started.errors)
        loop.remove_reader(started.pidfd)

    def _died(self) -> None:
        """It ended on its own: every access to the mount is an I/O error from here on."""
        assert self._serving is not None
        self._unwatch(self._serving)
        self.failure = f"its rclone has ended ({self._serving.message})"

    async def _copy(self, *, outward: bool) -> None:
        jail = await in_thread(lambda: self._jail(directory=True))
        command = copy_command(self._mount, outward=outward, most_bytes=None if outward else self._most_bytes)
        reason = await self._run(jail, command, _COPY_SECONDS)
        if reason is not None:
            raise SandboxUnavailable(f"{self._mount.url} could not be copied {'out' if outward else 'in'}: {reason}")

    async def sync(self) -> None:
        """Send what was written. Raises SandboxUnavailable when that fails."""
        if self.copied_because is None:
            if not await self._until_sent(_SEND_SECONDS):
                raise SandboxUnavailable(f"{self._mount.url}: not all that was written could be sent: try again")
            return
        if not self._mount.read_only:
            await self._copy(outward=True)
        await self._copy(outward=False)

    async def _until_sent(self, seconds: float) -> bool:
        """Wait until its cache holds nothing that the bucket has not. rclone says so in files alone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.failure is None and self._serving is not None:
            if await in_thread(_is_clean, self._path / "cache" / "vfsMeta"):
                return True
            if loop.time() > until:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def close(self) -> None:
        """Send what was written, and end. The sandbox uses it no longer. Idempotent."""
        if self.copied_because is not None and not self._mount.read_only:
            try:
                await self._copy(outward=True)
            except CoveError as error:
                log.warning("%s", error.message)
        started = self._serving
        if started is None:
            return
        if not await self._until_sent(_SEND_SECONDS):
            log.warning("%s: not all that was written was sent; it is kept", self._mount.url)
        await self._end(started)

    async def kill(self) -> None:
        """End it at once; what was not sent stays in its cache."""
        if self._serving is not None:
            await self._end(self._serving)

    async def _end(self, started: Rclone) -> None:
        if self._serving is None:
            return
        self._serving = None
        self._unwatch(started)
        started.tell_to_stop()
        await in_thread(started.wait, _END_SECONDS)
        await in_thread(started.close)

    def abandon(self) -> None:
        """End it without an event loop. Blocks."""
        if self._serving is not None:
            self._serving.close()
            self._serving = None


class _Item(msgspec.Struct, rename="pascal"):
    dirty: bool = False


def _is_clean(metadata: Path) -> bool:
    """Return whether no file of the cache waits to be sent. A file that is being written is read as one that does."""
    for above, _, names in os.walk(metadata):
        for name in names:
            with suppress(FileNotFoundError):
                try:
                    if msgspec.json.decode((Path(above) / name).read_bytes(), type=_Item).dirty:
                        return False
                except msgspec.DecodeError:
                    return False
    return True
