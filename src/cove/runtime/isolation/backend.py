"""Interface of an isolation backend: how the agent is started, and where things are as seen from inside."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from cove.core.jail import Host
from cove.layers.record import System
from cove.model import SandboxSpec
from cove.runtime.home import Place
from cove.runtime.interpreters import Interpreters
from cove.runtime.machine import Machine
from cove.runtime.mounts import OpenMounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Paths as code inside sees them, and the user who runs it, where there are several: core/users."""

    interpreter: tuple[str, ...]
    agent: str
    shell: str
    workspace: str
    env: Mapping[str, str]
    interpreters: Interpreters
    bash: tuple[str, ...] = ("/bin/bash",)
    user: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The arguments with which a backend starts the agent.

    `control` is the agent's end of the control socket. `info` is the write end of a pipe for `{"child-pid": N}`, the
    agent's pid on the host, which a backend with `tells_agent_pid` writes. `limits` are for setrlimit(2). The
    sources of `mounts` are held open. `directories` are those that the sandbox writes to. With `block` users are mapped
    from outside, and a byte comes there when they are. `users` is a user namespace that has its map.
    """

    machine: Machine
    place: Place
    spec: SandboxSpec
    mounts: OpenMounts
    system: System | None
    limits: Mapping[str, int]
    directories: Sequence[Path]
    control: int
    info: int
    block: int | None = None
    users: int | None = None

    @cached_property
    def host(self) -> Host:
        """The host as this jail shows it: looked at once. Blocks."""
        return self.machine.host(self.place, self.directories, self.system)


class Backend(Protocol):
    """One way to confine an agent."""

    @property
    def tells_agent_pid(self) -> bool:
        """Return whether the agent is a descendant of our child, not our child itself."""

    @property
    def has_user_of_its_own(self) -> bool:
        """Return whether, as root, our child is started as the host user of the place."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings of `SandboxInfo` for every sandbox of this kind."""

    def inside(self, machine: Machine, place: Place, system: System | None) -> Inside:
        """Say where things are inside; with the system of an image, blocks."""

    def command(self, launch: Launch, stack: ExitStack) -> tuple[list[str], list[int]]:
        """Return what to execute and the descriptors it inherits, which live as long as the stack. Blocks."""
