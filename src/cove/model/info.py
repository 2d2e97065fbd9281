"""Descriptions of sandboxes, sessions, terminals and ports, and their resource usage."""

from datetime import datetime
from enum import StrEnum

import msgspec

from cove.model.snapshot import SnapshotMethod
from cove.model.spec import Isolation, SandboxSpec


class SandboxStatus(StrEnum):
    """The status of a sandbox: whether anything can run in it."""

    RUNNING = "running"
    STOPPED = "stopped"
    LOST = "lost"
    PAUSED = "paused"


class TreeKill(StrEnum):
    """The means by which everything a command started is ended."""

    CGROUP = "cgroup"
    SUBREAPER = "subreaper"


class SandboxUsers(StrEnum):
    """The users inside: those of the image, each real; one, who is root by emulation; or one."""

    REAL = "real"
    EMULATED_ROOT = "emulated_root"
    ONE = "one"


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one sandbox: what it was asked to be and what the machine made possible.

    `snapshots` says how those are made: by layers on one another, whatever there is, or by copies of its files.
    `users` says whether `user=` of a call can name others than the sandbox's own. `spec` is what holds now. `ends_at`
    is when its lifetime is over and it is destroyed. `node` is the machine of a cluster that has it; None without one.
    `owner` is the tenant it belongs to; None for the server's own.
    """

    id: str
    status: SandboxStatus
    created_at: datetime
    spec: SandboxSpec
    isolation: Isolation
    tree_kill: TreeKill
    limits_enforced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    snapshots: SnapshotMethod = SnapshotMethod.OVERLAY
    ends_at: datetime | None = None
    users: SandboxUsers = SandboxUsers.ONE
    node: str | None = None
    owner: str | None = None


class MemoryMeasure(StrEnum):
    """The meaning of `memory_bytes`: all the control group holds, page cache too, or the processes' share of memory."""

    CGROUP = "cgroup"
    PROCESSES = "processes"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Resource usage of a sandbox at this moment; None where the machine cannot tell.

    `memory_bytes` is what `memory_measure` says: what the control group counts where there is one, with files in the
    page cache; otherwise the sum of its processes, in which what several share counts once (proportional set size).
    `cpu_seconds` is since it was started. `disk_bytes` and `files` are those of its writable directories;
    logs of its processes that are on disk are part of `disk_bytes`.
    `memory_kills` is how many processes were ended because its memory was used up: None without that limit.
    The network's numbers are those of its policies since the sandbox was created: None where there was none. Requests
    are those of intercepted names; what was refused are names, connections and requests.
    """

    memory_bytes: int | None = None
    memory_measure: MemoryMeasure | None = None
    cpu_seconds: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    files: int | None = None
    memory_kills: int | None = None
    network_sent_bytes: int | None = None
    network_received_bytes: int | None = None
    network_connections: int | None = None
    network_requests: int | None = None
    network_refused: int | None = None


class SessionStatus(StrEnum):
    """The status of a session: whether its shell lives."""

    RUNNING = "running"
    TERMINATED = "terminated"


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one session; `restored` when it was brought back after its sandbox had stopped."""

    id: str
    status: SessionStatus
    created_at: datetime
    cwd: str
    exit_code: int | None = None
    restored: bool = False


class TerminalInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one terminal."""

    id: str
    cols: int
    rows: int
    created_at: datetime
    is_running: bool
    exit_code: int | None = None


class ExposedPort(msgspec.Struct, frozen=True, kw_only=True):
    """An exposed port: whoever knows `url` reaches it. `path_url` leads there too, without a host name of its own.

    Not every resolver knows names below `localhost`: programs take `path_url` then, and browsers always `url`.
    """

    port: int
    url: str
    path_url: str
    token: str
    name: str | None = None
