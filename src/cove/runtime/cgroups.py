"""Control groups of one sandbox: made before it starts, removed after it has ended."""

import os
from dataclasses import dataclass, field

from cove.core.limits import Setting, choose_settings, count_memory_kills, requested, stand_ins
from cove.linux.cgroup import Group, Hierarchies, group_path
from cove.model import Limits

_STOP_SECONDS = 5.0
# Limits that need no control group.
_ELSEWHERE = frozenset({"open_files", "contexts", "disk", "inodes"})


@dataclass(slots=True)
class SandboxGroups:
    """`tree` is the group in the unified tree, which can kill; `all` has the v1 groups too.

    `controlled` has the group that each controller with a limit is in. `process_limits` are for setrlimit(2).
    `not_held` says why nothing keeps this sandbox from using up what all share, where that is so.
    """

    tree: Group | None
    all: list[Group] = field(default_factory=list)
    controlled: dict[str, Group] = field(default_factory=dict)
    enforced: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    process_limits: dict[str, int] = field(default_factory=dict)
    has_disk: bool = False
    is_disk_watched: bool = False
    not_held: str | None = None

    def enter(self, pid: int) -> None:
        """Move the agent in, before it has started anything. Blocks for some milliseconds."""
        for group in self.all:
            group.add(pid)

    def remove(self) -> None:
        """Remove the groups of a sandbox that has ended; without isolation, processes may have outlived its agent."""
        if self.tree is not None and os.path.exists(self.tree.path):
            self.tree.kill()
            self.tree.wait_empty(_STOP_SECONDS)
        for group in self.all:
            group.remove()

    def count_memory_kills(self) -> int:
        """Count the processes of the sandbox that the OOM killer has ended. Blocks."""
        group = self.controlled["memory"]
        return count_memory_kills(group.read("memory.events" if group is self.tree else "memory.oom_control"))

    def warnings(self) -> list[str]:
        """Return warnings on limits that are not held as they were asked for."""
        found = [
            f"limit {name} cannot be enforced on this machine"
            for name in self.missing
            if name not in ("memory", "pids")
        ]
        if "RLIMIT_DATA" in self.process_limits:
            found.append("limit memory holds for each process, not for all together: there is no control group for it")
        if "RLIMIT_NPROC" in self.process_limits:
            found.append("limit pids is held by RLIMIT_NPROC: there is no control group for it")
        if self.is_disk_watched:
            found.append("limits on the disk are held by measuring: who passes them is ended shortly after")
        if self.not_held is not None:
            found.append(f"files in memory, terminals and inotify of all sandboxes can be used up: {self.not_held}")
        return found


def make_groups(hierarchies: Hierarchies, key: str, limits: Limits, *, has_disk: bool = False) -> SandboxGroups:
    """Make the groups and set the limits that this machine can enforce. Blocks.

    With a disk of its own the sandbox needs no limit on the size of a single file.
    """
    chosen, others = choose_settings(limits, hierarchies.controllers, hierarchies.v1)
    groups = SandboxGroups(None)
    if hierarchies.unified is not None:
        groups.tree = Group(os.path.join(hierarchies.unified, key))
        groups.tree.create()
        groups.all.append(groups.tree)
    for setting in chosen:
        assert groups.tree is not None  # only the unified tree's own controllers are chosen
        groups.controlled[setting.controller] = groups.tree
    for setting in others:
        if setting.controller not in groups.controlled:
            group = Group(os.path.join(hierarchies.v1[setting.controller], key))
            group.create()
            groups.all.append(group)
            groups.controlled[setting.controller] = group
    for setting in (*chosen, *others):
        _apply(groups.controlled[setting.controller], setting)
    held = {setting.limit for setting in (*chosen, *others)} | _ELSEWHERE
    groups.missing = tuple(name for name in requested(limits) if name not in held)
    groups.process_limits = stand_ins(limits, [*groups.missing, *([] if has_disk else ["disk"])])
    groups.has_disk = has_disk
    groups.is_disk_watched = not has_disk and (limits.disk is not None or limits.inodes is not None)
    groups.enforced = tuple(name for name in requested(limits) if name in held or _is_stood_in(name, groups))
    return groups


def explain_missing(hierarchies: Hierarchies, limits: Limits) -> list[str]:
    """Explain which of these limits this machine does not hold, or holds in another way. Makes nothing."""
    chosen, others = choose_settings(limits, hierarchies.controllers, hierarchies.v1)
    held = {setting.limit for setting in (*chosen, *others)} | _ELSEWHERE
    missing = tuple(name for name in requested(limits) if name not in held)
    return SandboxGroups(None, missing=missing, process_limits=stand_ins(limits, missing)).warnings()


def find_groups(hierarchies: Hierarchies, key: str) -> SandboxGroups:
    """Return the groups that another process has made for a sandbox. Blocks."""
    groups = SandboxGroups(None)
    if hierarchies.unified is not None:
        groups.tree = Group(group_path(hierarchies.unified, key))
        groups.controlled = dict.fromkeys(hierarchies.controllers, groups.tree)
    for controller, path in hierarchies.v1.items():
        found = group_path(path, key)
        if controller not in groups.controlled and os.path.isdir(found):
            groups.controlled[controller] = Group(found)
    return groups


def _is_stood_in(name: str, groups: SandboxGroups) -> bool:
    return name == "pids" and "RLIMIT_NPROC" in groups.process_limits


def _apply(group: Group, setting: Setting) -> None:
    try:
        group.write(setting.file, setting.value)
    except FileNotFoundError:
        if not setting.is_optional:
            raise
