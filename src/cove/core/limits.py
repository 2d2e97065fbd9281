"""Map limits to cgroup control files (v2 and v1), and to their stand-ins: rlimits and sysctls."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cove.model import Limits

# Of a sandbox without a limit of its own; threads count.
MOST_PROCESSES = 4096

# Of RLIMIT_CORE inside, soft and hard; the filter keeps it. A limit of 0 stops core files, but not a handler that
# core_pattern pipes them to, which runs as root on the host. 1 stops both: no core fits, and the kernel starts no
# handler for it (fs/coredump.c).
CORE_BYTES = 1

# Of the writable file systems in memory, whose size bounds the contents of files but not their number: an empty file
# costs the kernel a kilobyte. Of terminals the kernel keeps kernel.pty.max for all sandboxes; devpts forgets its other
# options when one is set.
MOUNT_OPTIONS: Mapping[str, str] = {
    "/": "nr_inodes=16384",
    "/dev/shm": "nr_inodes=16384",
    "/run": "nr_inodes=1024",
    "/dev/pts": "mode=620,ptmxmode=666,max=256",
}

# Each sandbox of a plain user gets one share of what that user has: of inotify, and by these limits.
USER_SHARES = 8
_OF_A_USER = ("RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE")
GUARDED = ("RLIMIT_NPROC", *_OF_A_USER)

# In microseconds. Who has used up a period's share waits for the next: a short one means short bursts, so that what
# others run hardly waits for them. The kernel takes no quota below the second, and no period above the third.
_CPU_PERIOD = 5_000
_LEAST_QUOTA = 1_000
_LONGEST_PERIOD = 1_000_000


@dataclass(frozen=True, slots=True)
class Setting:
    """Write `value` to `file` in the group of that controller; an optional one is not on every machine."""

    limit: str
    controller: str
    file: str
    value: str
    is_optional: bool = False


def unified_settings(limits: Limits) -> list[Setting]:
    """Return the control files of cgroup v2."""
    settings = []
    if limits.memory is not None:
        settings.append(Setting("memory", "memory", "memory.max", str(limits.memory)))
        settings.append(Setting("memory", "memory", "memory.swap.max", "0", is_optional=True))
    if limits.pids is not None:
        settings.append(Setting("pids", "pids", "pids.max", str(limits.pids)))
    if limits.cpus is not None:
        quota, period = _bandwidth(limits.cpus)
        settings.append(Setting("cpus", "cpu", "cpu.max", f"{quota} {period}"))
    return settings


def v1_settings(limits: Limits) -> list[Setting]:
    """Return the control files of cgroup v1."""
    settings = []
    if limits.memory is not None:
        settings.append(Setting("memory", "memory", "memory.limit_in_bytes", str(limits.memory)))
        # With swap counted in, the sum can be no more than the memory alone may be.
        settings.append(
            Setting("memory", "memory", "memory.memsw.limit_in_bytes", str(limits.memory), is_optional=True)
        )
    if limits.pids is not None:
        settings.append(Setting("pids", "pids", "pids.max", str(limits.pids)))
    if limits.cpus is not None:
        quota, period = _bandwidth(limits.cpus)
        settings.append(Setting("cpus", "cpu", "cpu.cfs_period_us", str(period)))
        settings.append(Setting("cpus", "cpu", "cpu.cfs_quota_us", str(quota)))
    return settings


def _bandwidth(cpus: float) -> tuple[int, int]:
    period = min(max(_CPU_PERIOD, math.ceil(_LEAST_QUOTA / cpus)), _LONGEST_PERIOD)
    return max(_LEAST_QUOTA, int(cpus * period)), period


def choose_settings(
    limits: Limits, unified: Collection[str], v1: Collection[str]
) -> tuple[list[Setting], list[Setting]]:
    """Return the settings this machine can take: for the unified tree, and for v1 where that has the controller."""
    chosen = [setting for setting in unified_settings(limits) if setting.controller in unified]
    others = [
        setting for setting in v1_settings(limits) if setting.controller in v1 and setting.controller not in unified
    ]
    return chosen, others


def requested(limits: Limits) -> list[str]:
    """Return the names of the limits that are set."""
    return [name for name in limits.__struct_fields__ if getattr(limits, name) is not None]


def stand_ins(limits: Limits, missing: Collection[str]) -> dict[str, int]:
    """Limits of setrlimit(2) for what no control group holds. Memory is then held for each process alone."""
    found = {}
    if limits.pids is not None and "pids" in missing:
        found["RLIMIT_NPROC"] = limits.pids
    if limits.memory is not None and "memory" in missing:
        found["RLIMIT_DATA"] = limits.memory
    if limits.disk is not None and "disk" in missing:
        found["RLIMIT_FSIZE"] = limits.disk
    return found


def guards(limits: Limits, ours: Mapping[str, float]) -> dict[str, int]:
    """Return the defaults that hold where no limit was asked for. `ours` are our own hard limits.

    No fork bomb fills the machine, and nobody takes all the signals and messages that a user may have waiting.
    """
    shared = {name: int(ours[name] / USER_SHARES) for name in _OF_A_USER if ours[name] < math.inf}
    if limits.pids is None and ours["RLIMIT_NPROC"] >= MOST_PROCESSES:
        shared["RLIMIT_NPROC"] = MOST_PROCESSES
    return shared


def inotify_limits(instances: int, watches: int) -> dict[str, int]:
    """Return a sandbox's share of the user's inotify limits, as sysctls of its user namespace."""
    return {
        "max_inotify_instances": max(instances // USER_SHARES, 1),
        "max_inotify_watches": max(watches // USER_SHARES, 1),
    }


def descriptors_inside(soft: int, hard: int) -> tuple[int, int]:
    """Return the soft and hard limit on open files inside, where the agent and we have `hard`.

    Descriptors on their way through sockets are counted for a user, and whoever sends one is held to its own limit:
    half of ours is left when everything that sandboxes may have is on its way. unix(7), ETOOMANYREFS
    """
    most = max(hard // 2, 1)
    return min(soft, most), most


def count_memory_kills(text: str) -> int:
    """Parse how many processes the OOM killer has ended: `memory.events`, `memory.oom_control`."""
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return 0 if found is None else int(found[1])
