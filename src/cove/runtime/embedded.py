"""The sandboxes of this program: no daemon, no port, everything ends with the program."""

import asyncio
import os
import stat
from functools import partial

import msgspec

from cove.api import AsyncSandbox
from cove.core.identifier import check_sandbox_id, new_identifier
from cove.core.jail import check_mount
from cove.errors import PermissionDenied, SandboxAlreadyExists, SandboxNotFound, from_errno
from cove.model import Mount, SandboxInfo, SandboxSpec
from cove.runtime.groups import make_groups
from cove.runtime.home import Place
from cove.runtime.jail import start_jail
from cove.runtime.machine import Machine, examine_machine
from cove.runtime.sandbox import Sandbox
from cove.runtime.threads import in_thread


class Embedded:
    """Makes sandboxes in the caller's own event loop. An id is taken before the first await."""

    def __init__(self) -> None:
        self._sandboxes: dict[str, Sandbox | None] = {}
        self._undoing: set[asyncio.Task[None]] = set()
        self._machine: Machine | None = None
        self._pid = os.getpid()

    async def create(self, id: str | None, spec: SandboxSpec) -> AsyncSandbox:
        """A new sandbox; a cancelled creation leaves nothing."""
        self._forget_after_fork()
        id = new_identifier() if id is None else check_sandbox_id(id)
        if id in self._sandboxes:
            raise SandboxAlreadyExists(f"sandbox {id} exists already in this program", id=id)
        self._sandboxes[id] = None
        opening = asyncio.get_running_loop().create_task(self._open(id, spec))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            undoing = asyncio.get_running_loop().create_task(_undo(opening))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            await asyncio.shield(undoing)
            raise

    async def connect(self, id: str) -> AsyncSandbox:
        """A sandbox of this program that lives in this event loop."""
        self._forget_after_fork()
        sandbox = self._sandboxes.get(check_sandbox_id(id))
        if sandbox is None or sandbox.loop is not asyncio.get_running_loop():
            raise SandboxNotFound(f"there is no sandbox {id} in this program", id=id)
        return sandbox

    async def list(self) -> list[SandboxInfo]:
        """All sandboxes of this program."""
        self._forget_after_fork()
        return [await sandbox.info() for sandbox in list(self._sandboxes.values()) if sandbox is not None]

    def abandon(self) -> None:
        """The program ends normally: remove what its sandboxes have on disk. Their processes end with it."""
        self._forget_after_fork()
        for sandbox in list(self._sandboxes.values()):
            if sandbox is not None:
                sandbox.abandon()

    async def _open(self, id: str, spec: SandboxSpec) -> Sandbox:
        try:
            sandbox = await self._start(id, spec)
        except BaseException:
            self._forget(id)
            raise
        self._sandboxes[id] = sandbox
        sandbox.on_end = partial(self._forget, id)
        return sandbox

    async def _start(self, id: str, spec: SandboxSpec) -> Sandbox:
        machine = await self._examine()
        spec = await in_thread(_resolve_mounts, spec, str(machine.home.path))
        place = await in_thread(machine.home.allocate)
        try:
            sandbox = Sandbox(id, spec, machine, place)
            await _start(sandbox, machine, place, spec)
        except BaseException:
            await in_thread(machine.home.release, place)
            raise
        return sandbox

    def _forget(self, id: str) -> None:
        self._sandboxes.pop(id, None)

    async def _examine(self) -> Machine:
        if self._machine is None:
            machine = await in_thread(examine_machine)
            await in_thread(machine.home.collect, machine.hierarchies)
            self._machine = machine
        return self._machine

    def _forget_after_fork(self) -> None:
        """A forked child has no sandboxes: their sockets were closed in it."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # a fresh start is exactly what is meant


async def _undo(opening: "asyncio.Task[Sandbox]") -> None:
    """Destroy what a cancelled creation still makes. A second cancel does not stop this."""
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().destroy()


async def _start(sandbox: Sandbox, machine: Machine, place: Place, spec: SandboxSpec) -> None:
    groups = await in_thread(make_groups, machine.hierarchies, place.key, spec.limits)
    try:
        jail = await start_jail(machine, place, spec, groups, sandbox.lose)
    except BaseException:
        await in_thread(groups.remove)
        raise
    try:
        await sandbox.open(jail)
    except BaseException:
        await jail.close()
        raise


def _resolve_mounts(spec: SandboxSpec, state_directory: str) -> SandboxSpec:
    """Each source is resolved once, as the caller; what is refused is refused before anything starts."""
    resolved = []
    for mount in spec.mounts:
        try:
            source = os.path.realpath(mount.source, strict=True)
            _check_source(source)
        except OSError as error:
            raise from_errno(error.errno or 0, f"mount source {mount.source}") from None
        resolved.append(
            check_mount(
                Mount(source=source, target=mount.target, read_only=mount.read_only), state_directory=state_directory
            )
        )
    return msgspec.structs.replace(spec, mounts=tuple(resolved))


def _check_source(path: str) -> None:
    """What is mounted is a directory or a file that the sandbox's user can reach. As root that is another user."""
    mode = os.stat(path).st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise PermissionDenied(f"mount source {path} is refused: a socket, device or pipe leads out of the sandbox")
    while os.geteuid() == 0 and path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & stat.S_IXOTH:
            raise PermissionDenied(
                f"mount source: the sandbox's user cannot enter {path}: `chmod o+x` it or mount another place"
            )
