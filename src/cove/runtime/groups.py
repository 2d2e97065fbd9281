"""The control groups of one sandbox: made before it starts, removed after it has ended."""

import os
from dataclasses import dataclass, field

from cove.core.limits import choose_settings, requested
from cove.linux.cgroup import Group, Hierarchies
from cove.model import Limits

_STOP_SECONDS = 5.0


@dataclass(slots=True)
class SandboxGroups:
    """`tree` is the group in the unified tree, which can kill; `all` has the v1 groups too."""

    tree: Group | None
    all: list[Group] = field(default_factory=list)
    enforced: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

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


def make_groups(hierarchies: Hierarchies, key: str, limits: Limits) -> SandboxGroups:
    """Make the groups and set the limits that this machine can enforce. Blocks."""
    chosen, others = choose_settings(limits, hierarchies.controllers, hierarchies.v1)
    groups = SandboxGroups(None)
    if hierarchies.unified is not None:
        groups.tree = Group(os.path.join(hierarchies.unified, key))
        groups.tree.create()
        groups.all.append(groups.tree)
        for setting in chosen:
            groups.tree.write(setting.file, setting.value)
    made: dict[str, Group] = {}
    for setting in others:
        if setting.controller not in made:
            made[setting.controller] = Group(os.path.join(hierarchies.v1[setting.controller], key))
            made[setting.controller].create()
            groups.all.append(made[setting.controller])
        made[setting.controller].write(setting.file, setting.value)
    names = {setting.limit for setting in (*chosen, *others)} | {"open_files", "contexts"}
    groups.enforced = tuple(name for name in requested(limits) if name in names)
    groups.missing = tuple(name for name in requested(limits) if name not in names)
    return groups
