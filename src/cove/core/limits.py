"""Which control files hold which limits, for the unified tree and for the v1 trees."""

from collections.abc import Collection
from dataclasses import dataclass

from cove.model import Limits

_CPU_PERIOD = 100_000


@dataclass(frozen=True, slots=True)
class Setting:
    """Write `value` to `file` in the group of that controller."""

    limit: str
    controller: str
    file: str
    value: str


def unified_settings(limits: Limits) -> list[Setting]:
    """For cgroup v2."""
    settings = []
    if limits.memory is not None:
        settings.append(Setting("memory", "memory", "memory.max", str(limits.memory)))
    if limits.pids is not None:
        settings.append(Setting("pids", "pids", "pids.max", str(limits.pids)))
    if limits.cpus is not None:
        settings.append(Setting("cpus", "cpu", "cpu.max", f"{int(limits.cpus * _CPU_PERIOD)} {_CPU_PERIOD}"))
    return settings


def v1_settings(limits: Limits) -> list[Setting]:
    """For cgroup v1."""
    settings = []
    if limits.memory is not None:
        settings.append(Setting("memory", "memory", "memory.limit_in_bytes", str(limits.memory)))
    if limits.pids is not None:
        settings.append(Setting("pids", "pids", "pids.max", str(limits.pids)))
    if limits.cpus is not None:
        settings.append(Setting("cpus", "cpu", "cpu.cfs_period_us", str(_CPU_PERIOD)))
        settings.append(Setting("cpus", "cpu", "cpu.cfs_quota_us", str(int(limits.cpus * _CPU_PERIOD))))
    return settings


def choose_settings(
    limits: Limits, unified: Collection[str], v1: Collection[str]
) -> tuple[list[Setting], list[Setting]]:
    """The settings this machine can take: for the unified tree, and for v1 where that has the controller."""
    chosen = [setting for setting in unified_settings(limits) if setting.controller in unified]
    others = [
        setting for setting in v1_settings(limits) if setting.controller in v1 and setting.controller not in unified
    ]
    return chosen, others


def requested(limits: Limits) -> list[str]:
    """The names of the limits that are set."""
    return [name for name in limits.__struct_fields__ if getattr(limits, name) is not None]
