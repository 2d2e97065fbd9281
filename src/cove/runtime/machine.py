"""Examine the capabilities of this machine, once per program, and refuse what a sandbox cannot do without."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cove.attach import Nursery, can_enter_namespaces
from cove.core.jail import (
    HOST_DIRECTORY,
    INTERPRETER_DIRECTORY,
    MASKED_PROC_DIRECTORIES,
    MASKED_PROC_FILES,
    USER_ID,
    Host,
)
from cove.core.limits import descriptors_inside
from cove.core.users import FIRST_RANGE, RANGE_USERS, RANGES
from cove.errors import InterpreterNotReady, SandboxUnavailable
from cove.layers.record import System
from cove.layers.support import find_method
from cove.linux.bubblewrap import OLDEST, bubblewrap_version, find_bubblewrap
from cove.linux.cgroup import Hierarchies, find_hierarchies
from cove.linux.descriptors import raise_descriptor_limit
from cove.linux.dynamic_loader import find_loader
from cove.linux.interpreter import Interpreter, find_interpreter
from cove.linux.seccomp import explain_missing_filter, find_filter
from cove.linux.user_map import can_map_users
from cove.local.state import default_home
from cove.model import Limits, SnapshotMethod
from cove.runtime.etc import EtcDirectory
from cove.runtime.home import Home, Place
from cove.runtime.interpreters import find_node, find_python_environment
from cove.runtime.programs import PACKAGES, prepare_agent, prepare_attach, prepare_executor

# What a sandbox without a limit of its own is expected to need, and how many wait for something on each core.
_USUAL_MEMORY = 128 << 20
_PER_CORE = 16

_ROOT_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts and prepared files that all sandboxes of this program share."""

    home: Home
    interpreter: Interpreter
    agent: Path
    attach: Path
    etc: EtcDirectory
    executor: Path
    python: Path | None
    node: str | None
    has_node_packages: bool
    hierarchies: Hierarchies
    bubblewrap: str | None
    can_enter_namespaces: bool
    filter: bytes | None
    descriptor_limits: tuple[int, int]
    snapshots: SnapshotMethod
    can_map_users: bool = False
    is_root: bool = False
    attach_socket: str | None = None  # where a process listens that forks helpers of this version
    nursery: Nursery | None = None  # forks helpers while many sandboxes start at once

    def host(self, place: Place, directories: Sequence[Path] = (), system: System | None = None) -> Host:
        """Describe the host for the jail of a sandbox at that place, whose files are in these directories."""
        own = directories or (place.workspace, place.home, place.tmp)
        links = {name: os.readlink(f"/{name}") for name in _ROOT_NAMES if os.path.islink(f"/{name}")}
        roots = tuple(name for name in _ROOT_NAMES if name not in links and os.path.isdir(f"/{name}"))
        resolv_conf = os.path.realpath("/etc/resolv.conf")
        return Host(
            root_links=links,
            root_directories=roots,
            etc=str(self.etc.current()),
            proc_files=tuple(name for name in MASKED_PROC_FILES if os.path.exists(f"/proc/{name}")),
            proc_directories=tuple(name for name in MASKED_PROC_DIRECTORIES if os.path.isdir(f"/proc/{name}")),
            masks_are_copied=self.can_enter_namespaces,
            empty=str(self.home.empty),
            agent=str(self.agent),
            interpreter=self.interpreter_inside,
            interpreter_prefix=self.interpreter.prefix,
            resolv_conf=resolv_conf if os.path.exists(resolv_conf) else None,
            workspace=str(own[0]),
            home=str(own[1]),
            tmp=str(own[2]),
            shell=str(place.shell),
            executor=str(self.executor),
            python=None if self.python is None else str(self.python),
            has_users=place.users > 1,
            user_id=USER_ID if system is None else system.user_id,
            group_id=USER_ID if system is None else system.group_id,
            has_image=system is not None,
        )

    def open_files(self, limits: Limits) -> tuple[int, int]:
        """The soft and the hard limit on descriptors of what runs inside."""
        soft, most = descriptors_inside(*self.descriptor_limits)
        wanted = limits.open_files
        return (soft, most) if wanted is None else (min(wanted, most), min(wanted, most))

    @property
    def interpreter_inside(self) -> str:
        """The path of the agent's Python as the jail sees it."""
        if self.interpreter.prefix is None:
            return self.interpreter.path
        return os.path.join(INTERPRETER_DIRECTORY, os.path.relpath(self.interpreter.path, self.interpreter.prefix))

    def beside_image(self, program: str, name: str | None = None) -> tuple[str, ...]:
        """Return the words that run a program of the host in a jail whose system is an image's. Blocks."""
        loader = find_loader(self.interpreter.path)
        if loader is None:
            raise SandboxUnavailable(
                f"no sandbox can stand on an image here: {self.interpreter.path} is not run by a dynamic loader "
                "below /usr; install the system's Python (`sudo apt install python3`)"
            )
        return loader.command(program, usr=HOST_DIRECTORY, name=name)

    @property
    def attach_command(self) -> list[str]:
        """The program that enters a jail's namespaces."""
        return [self.interpreter.path, "-I", "-S", "-B", str(self.attach)]

    def require_bubblewrap(self) -> str:
        """The path of bwrap, or what to install."""
        if self.bubblewrap is None:
            raise SandboxUnavailable(
                "bubblewrap is not installed: `sudo apt install bubblewrap` (Debian, Ubuntu), `sudo dnf install "
                "bubblewrap` (Fedora). Run `cove doctor` to check everything. Trusted code can run without "
                "isolation if you ask for it: isolation='none'."
            )
        return self.bubblewrap

    def require_filter(self, *, emulates_root: bool = False) -> bytes:
        """Require a seccomp filter: without one there is no isolation."""
        if self.filter is None:
            raise SandboxUnavailable(
                f"no seccomp filter: {explain_missing_filter()}. Trusted code can run without isolation if you "
                "ask for it: isolation='none'."
            )
        found = find_filter(emulates_root=True) if emulates_root else self.filter
        assert found is not None  # the same machine has the other
        return found


def examine_machine() -> Machine:
    """Look at the machine and prepare what all sandboxes share. Blocks."""
    is_root = os.geteuid() == 0
    home = Home(default_home())
    home.open()
    interpreter = find_interpreter(0 if is_root else None)
    if interpreter is None:
        raise InterpreterNotReady(
            "no Python 3.10 or newer that a sandbox could run: install the system's (`sudo apt install python3`). "
            "One below a private home directory cannot be used when Cove runs as root."
        )
    bubblewrap = find_bubblewrap()
    if bubblewrap is not None and (version := bubblewrap_version(bubblewrap)) is not None and version < OLDEST:
        found, oldest = (".".join(map(str, each)) for each in (version, OLDEST))
        raise SandboxUnavailable(f"{bubblewrap} is version {found}, Cove needs {oldest} or newer: see `cove doctor`")
    executor = prepare_executor(home.path / "executor", interpreter)
    return Machine(
        home=home,
        interpreter=interpreter,
        agent=prepare_agent(home.path / "agent", interpreter),
        attach=prepare_attach(home.path / "attach", interpreter),
        etc=EtcDirectory(home.path / "etc"),
        executor=executor,
        python=find_python_environment(home.path),
        node=find_node(),
        has_node_packages=(executor / PACKAGES).exists(),
        hierarchies=find_hierarchies(),
        bubblewrap=bubblewrap,
        can_enter_namespaces=is_root and can_enter_namespaces(),
        filter=find_filter(),
        descriptor_limits=raise_descriptor_limit(),
        snapshots=find_method(home.path, can_mount=not is_root or can_enter_namespaces()),
        can_map_users=can_map_users(FIRST_RANGE, RANGES * RANGE_USERS),
        is_root=is_root,
    )


def count_room(memory: int | None) -> int:
    """Say how many sandboxes that may have so much memory can work at once, at least one. Blocks."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    by_memory = available // (memory or _USUAL_MEMORY)
    return max(1, min(by_memory, len(os.sched_getaffinity(0)) * _PER_CORE))
