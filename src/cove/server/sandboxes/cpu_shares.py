"""Share processors out between tenants, not between sandboxes: one control group for each tenant. Blocks.

The processes of a tenant's sandboxes, and those that run them, are below one group, which weighs as much as that of any
other tenant. So who has many sandboxes, or many processes, gets no more than who has one, while both want to run. The
server's own sandboxes, and those that waited in a warm pool, have a group and so a share each.
"""

import os
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2s
from pathlib import Path

from cove.linux.cgroup import SHARE, Group, Hierarchies, delegate

_RUNTIMES = "runtimes"
_WORKERS = "workers"
_TRIES = 3
# Gateway workers have little to do for each request, but everybody waits for them.
_WORKERS_WEIGHT = 8


def enter_share(hierarchies: Hierarchies, home: Path, tenant: str) -> Hierarchies:
    """Move this process to its tenant's share; returns the trees in which its sandbox's groups belong.

    Where processors cannot be shared out, the trees are as they were.
    """
    name = SHARE + blake2s(f"{home}\0{tenant}".encode(), digest_size=8).hexdigest()
    for _ in range(_TRIES):  # an empty one may be removed just now
        with suppress(OSError):
            return _enter(hierarchies, name)
    return hierarchies


def enter_workers(hierarchies: Hierarchies) -> None:
    """Move this process to the share of gateway workers, which no sandbox makes wait for long."""
    with suppress(OSError):
        tree = _cpu_tree(hierarchies)
        if tree is not None:
            _weigh(tree, os.cpu_count() or 1)
            workers = Group(os.path.join(tree, _WORKERS))
            os.makedirs(workers.path, exist_ok=True)
            _weigh(workers.path, _WORKERS_WEIGHT * (os.cpu_count() or 1))
            workers.add(os.getpid())


def _enter(hierarchies: Hierarchies, name: str) -> Hierarchies:
    tree = _cpu_tree(hierarchies)
    if tree is None:
        return hierarchies
    _weigh(tree, os.cpu_count() or 1)
    share = os.path.join(tree, name)
    if tree != hierarchies.unified:
        os.makedirs(share, exist_ok=True)
        Group(share).add(os.getpid())
        return replace(hierarchies, v1={**hierarchies.v1, "cpu": share})
    runtimes = os.path.join(share, _RUNTIMES)  # no process is in a group that has others below it: cgroups(7)
    os.makedirs(runtimes, exist_ok=True)
    if not hierarchies.controllers <= delegate(share):
        return hierarchies
    Group(runtimes).add(os.getpid())
    return replace(hierarchies, unified=share)


def _cpu_tree(hierarchies: Hierarchies) -> str | None:
    return hierarchies.unified if "cpu" in hierarchies.controllers else hierarchies.v1.get("cpu")


def _weigh(group: str, weight: int) -> None:
    """Let a group weigh as much as so many programs; it is divided among the processors that it runs on."""
    if os.path.exists(os.path.join(group, "cpu.weight")):
        Group(group).write("cpu.weight", str(min(100 * weight, 10_000)))
    else:
        Group(group).write("cpu.shares", str(min(1024 * weight, 262_144)))


def remove_empty_shares(hierarchies: Hierarchies) -> None:
    """Remove the shares of tenants of whom nothing runs."""
    for tree in hierarchies.all:
        for share in Path(tree).glob(f"{SHARE}*"):
            with suppress(OSError):  # somebody is in it
                (share / _RUNTIMES).rmdir()
            with suppress(OSError):
                share.rmdir()
