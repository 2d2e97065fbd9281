"""What is kept outside of a sandbox: backups of a directory, named volumes, and a bucket."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from cove import AsyncVolume, BucketMount, Secret, VolumeMount
from cove.errors import BackupNotFound, FileNotFound, MountExists, MountNotFound, VolumeInUse, VolumeNotFound
from cove.model import ExecResult
from soak.hand import Answer, Hand, Step, Surface
from soak.model import check
from soak.possible import Possible
from soak.surfaces.files import FileTree
from soak.trees import Tree, mixture
from soak.world import BUCKET

_MOST = 2
_PAUSE = 0.05
_COPIES_SECONDS = 60.0
_NAMES = ("x", "y")


@dataclass
class _Backup:
    """One that was made, and what the directory had then."""

    id: str
    files: Tree


class Backups(Surface):
    """Backups of the hand's own directory."""

    weight = 0.4

    def __init__(self, hand: Hand, files: FileTree) -> None:
        super().__init__(hand)
        self._files = files
        self._known: list[_Backup] = []

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        some = 1.0 if self._known else 0.0
        return {
            self._create: 1 if len(self._known) < _MOST else 0,
            self._restore: 1 * some,
            self._delete: 0.5 * some,
        }

    async def _create(self) -> None:
        files = self._files.remember()
        made = self.hand.sandbox.backups.create(self._files.directory, self.hand.new_id("backup"))
        answer = await self.hand.call("backup", made, FileNotFound)
        if answer.is_done:
            self._known.append(_Backup(answer.get().id, files))
        elif not answer.is_certain:
            self.hand.doubt()

    async def _restore(self) -> None:
        known, before = self.hand.random.choice(self._known), self._files.remember()
        answer = await self.hand.call("restore-backup", self.hand.sandbox.backups.restore(known.id))
        if answer.is_done:
            self._files.become(known.files)
        else:
            parts = [mixture(before, known.files)] if self.hand.is_disturbed else []  # killed while it was exchanged
            await self.hand.subject.recover()
            await self._files.settle("a backup that was restored", before, known.files, *parts)

    async def _delete(self) -> None:
        await self._remove(self._known.pop(self.hand.random.randrange(len(self._known))))

    async def _remove(self, known: _Backup) -> None:
        while True:
            deleted = self.hand.sandbox.backups.delete(known.id)
            answer = await self.hand.call("delete-backup", deleted, BackupNotFound, is_steady=True)
            if answer.is_certain:
                return
            await self.hand.subject.recover()

    async def leave(self) -> None:
        """See Surface."""
        for known in self._known:
            await self._remove(known)
        self._known.clear()


class Mounted(Surface):
    """Something with two files that is mounted and unmounted while the sandbox runs."""

    weight = 0.5
    target = ""

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self._content = {name: Possible("") for name in _NAMES}

    @property
    def _is_mounted(self) -> Possible[bool]:
        return self.hand.subject.mounted.setdefault(self.target, Possible(False))

    def _mounted_steps(self) -> Mapping[Step, float]:
        there = self._is_mounted
        return {
            self._mount: 1 if False in there.values else 0,
            self._unmount: 0.4 if True in there.values else 0,
            self._write: 2 if there.is_certain and there.certain else 0,
            self._read: 2 if there.is_certain and there.certain else 0,
        }

    async def _add(self) -> None:
        raise NotImplementedError

    async def _mount(self) -> None:
        there = self._is_mounted
        answer = await self.hand.call(f"mount {self.target}", self._add(), MountExists)
        if answer.is_done:
            there.become(True)
        elif answer.is_certain:
            there.observe(True, f"{self.target} is mounted")
        else:
            await self._clear()

    async def _unmount(self) -> None:
        there = self._is_mounted
        answer = await self.hand.call(f"unmount {self.target}", self._removed(), MountNotFound)
        if answer.is_done:
            there.become(False)
        elif answer.is_certain:
            there.observe(False, f"{self.target} is mounted")
        else:
            await self._clear()

    async def _clear(self) -> None:
        """A change that nobody waited for comes to its end before the next one begins: remove what it has left."""
        while True:
            await self.hand.subject.recover()
            label = f"unmount {self.target} after all"
            answer = await self.hand.call(label, self._removed(), MountNotFound, is_steady=True)
            if answer.is_certain:
                self._is_mounted.become(False)
                return

    async def _removed(self) -> None:
        await self.hand.sandbox.mounts.remove(self.target)

    async def _ask(self) -> None:
        """What the sandbox says of its mounts."""
        await self.hand.subject.recover()
        listed = await self.hand.insist("list-mounts", self.hand.sandbox.mounts.list)
        is_there = any(mount.target == self.target for mount in listed or ())
        self._is_mounted.observe(is_there, f"{self.target} is mounted")

    async def _exec(self, label: str, command: str) -> Answer[ExecResult]:
        return await self.hand.call(f"{label} {self.target}", self.hand.sandbox.exec(command))

    async def _write(self) -> None:
        name, text = self.hand.random.choice(_NAMES), f"kept {self.hand.number()}"
        answer = await self._exec("write", f"printf '{text}' > {self.target}/{name}")
        if answer.is_done and answer.get().ok:
            self._content[name].become(text)
        else:
            check("what is mounted can be written", not answer.is_done or self.hand.is_disturbed, answer.value)
            self._content[name].may_become(text, "")

    async def _read(self) -> None:
        name = self.hand.random.choice(_NAMES)
        answer = await self._exec("read", f"[ ! -e {self.target}/{name} ] || cat {self.target}/{name}")
        if answer.is_done and (answer.get().ok or not self.hand.is_disturbed):
            check("what is mounted can be read", answer.get().ok, answer.value)
            self._content[name].observe(answer.get().stdout, f"{name} in {self.target}")

    async def verify(self) -> None:
        """See Surface."""
        await self._ask()


class Volumes(Mounted):
    """A volume outlives what is done to the sandbox: no snapshot has it, no way back changes it."""

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self.target = f"/data-{hand.name.replace('/', '-')}"
        self._name: str | None = None

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        if self._name is None:
            return {self._make: 1}
        there = self._is_mounted
        return {
            **self._mounted_steps(),
            self._delete_refused: 0.3 if there.is_certain and there.certain else 0,
            self._delete: 0.2 if there.is_certain and not there.certain else 0,
        }

    async def _make(self) -> None:
        where, name = self.hand.subject.where, f"v{self.hand.sandbox.id}.{self.hand.new_id('v')}"
        made = AsyncVolume.create(name, url=where.url, api_key=where.key)
        answer = await self.hand.call("create-volume", made)
        if answer.is_done:
            self._name = answer.get().name
            for content in self._content.values():
                content.become("")
        else:
            self.hand.subject.where.has_leftovers = True  # it is kept or not, and has a name that nobody uses again

    async def _add(self) -> None:
        assert self._name is not None
        await self.hand.sandbox.mounts.add(VolumeMount(volume=self._name, target=self.target))

    async def _delete_refused(self) -> None:
        answer = await self.hand.call("delete-volume", self._deleted(), VolumeInUse, is_steady=True)
        check("a volume that is used stays", not answer.is_done, self._name)

    async def _delete(self) -> None:
        await self._drop()

    async def _drop(self) -> None:
        """Another user may just have copies of the sandbox, which use the volume too; or a fault has left some."""
        where = self.hand.subject.where
        until = asyncio.get_running_loop().time() + (0 if self.hand.subject.is_sole else _COPIES_SECONDS)
        while True:
            may_be_used = where.has_leftovers or asyncio.get_running_loop().time() < until
            used = (VolumeInUse,) if may_be_used else ()
            answer = await self.hand.call("delete-volume", self._deleted(), VolumeNotFound, *used, is_steady=True)
            if isinstance(answer.error, VolumeInUse) and not where.has_leftovers:
                await asyncio.sleep(_PAUSE)
            elif answer.is_certain:
                self._name = None
                return
            await self.hand.subject.recover()

    async def _deleted(self) -> None:
        assert self._name is not None
        where = self.hand.subject.where
        await (await AsyncVolume.get(self._name, url=where.url, api_key=where.key)).delete()

    async def leave(self) -> None:
        """See Surface."""
        if self._name is None:
            return
        while True in self._is_mounted.values:
            await self._unmount()
        await self._drop()


class Buckets(Mounted):
    """What was sent to a bucket is there, whatever becomes of the process that serves it.

    `_unsent` is what each file was since it was last known to be sent: who is killed may lose it.
    """

    weight = 1.5
    target = "/bucket"

    def __init__(self, hand: Hand) -> None:
        super().__init__(hand)
        self._prefix = hand.sandbox.id
        self._unsent: dict[str, set[str]] = {name: set() for name in _NAMES}

    def steps(self) -> Mapping[Step, float]:
        """See Surface."""
        there, is_calm = self._is_mounted, self.hand.subject.where.is_calm
        some = 1.0 if there.is_certain and there.certain else 0.0
        return {**self._mounted_steps(), self._sync: some, self._kill: 0 if is_calm else 0.15 * some}

    def forget(self) -> None:
        """What was not sent may be lost with what runs."""
        for name, content in self._content.items():
            content.may_become(*sorted(self._unsent[name]))

    async def _add(self) -> None:
        world = self.hand.subject.where.world
        assert world.storage is not None
        mount = BucketMount(
            url=f"s3://{BUCKET}/{self._prefix}",
            endpoint=world.storage,
            target=self.target,
            credentials=Secret("BUCKET_KEYS"),
        )
        await self.hand.sandbox.mounts.add(mount)

    async def _write(self) -> None:
        for name, content in self._content.items():
            self._unsent[name].update(content.values)
        await super()._write()

    async def _sync(self) -> None:
        """What was written before is in the storage afterwards."""
        answer = await self.hand.call("sync", self.hand.sandbox.mounts.sync(self.target))
        if not answer.is_done:
            return
        for name, content in self._content.items():
            stored = await asyncio.to_thread(self.hand.subject.where.world.stored, f"{self._prefix}/{name}")
            content.observe("" if stored is None else stored.decode(), f"{name} in the bucket")
            self._unsent[name].clear()

    async def _kill(self) -> None:
        """SIGKILL for rclone: accesses fail until the bucket is mounted anew."""
        subject = self.hand.subject
        strike = await subject.kill_rclone()
        self.forget()
        if strike is None:
            return
        while True in self._is_mounted.values:
            await self._unmount()
        strike.ended = asyncio.get_running_loop().time()
