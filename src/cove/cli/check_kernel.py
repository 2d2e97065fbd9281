"""Check what Cove needs from the kernel: namespaces, filters, groups and limits."""

import subprocess
from pathlib import Path

from cove.cli.check import Check, install, is_root, missing, ok, warning
from cove.core.limits import inotify_limits
from cove.linux.bubblewrap import OLDEST, bubblewrap_version, explain_refusal, find_bubblewrap
from cove.linux.cgroup import Hierarchies, find_hierarchies
from cove.linux.seccomp import explain_missing_filter, find_filter
from cove.linux.thread_user import as_user
from cove.local.state import default_home
from cove.runtime.disk import LARGEST_IMAGE, try_disk

_TRIAL_SECONDS = 30.0
_NOBODY = 65534
_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_ENOUGH_INSTANCES = 512
# core(5): a program, a socket.
_CORE_HANDLERS = ("|", "@")


def check_bubblewrap() -> Check:
    """Look for bubblewrap, and for its version."""
    path = find_bubblewrap()
    if path is None:
        return missing("bubblewrap", "not installed", install("bubblewrap"))
    version = bubblewrap_version(path)
    if version is None:
        return missing("bubblewrap", f"{path} does not tell its version", install("bubblewrap"))
    found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
    if version < OLDEST:
        return missing("bubblewrap", f"{found}, {path}", f"Cove needs {oldest} or newer: {install('bubblewrap')}")
    return ok("bubblewrap", f"{found}, {path}")


def check_namespaces() -> Check:
    """Make namespaces as the kind of user that sandboxes run as: root may do what others may not."""
    path = find_bubblewrap()
    if path is None:
        return missing("namespaces", "not tried: bubblewrap is not installed", install("bubblewrap"))
    complaint = _try_namespaces(path)
    if complaint is None:
        return ok("namespaces", "user, pid, network, ipc and uts namespaces can be made")
    return missing("namespaces", "the kernel refuses them", explain_refusal(complaint))


def _try_namespaces(bubblewrap: str) -> str | None:
    """None, or what bubblewrap complained about; as root it is tried as another user, as sandboxes are."""
    jail = ["--unshare-all", "--disable-userns", "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc", "--"]
    try:
        with as_user(_NOBODY if is_root() else None):
            end = subprocess.run(
                [bubblewrap, *jail, "/bin/sh", "-c", ":"],
                check=False,
                capture_output=True,
                text=True,
                timeout=_TRIAL_SECONDS,
                env={},
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if end.returncode == 0 else end.stderr


def check_seccomp() -> Check:
    """Load the filter that every sandbox gets."""
    program = find_filter()
    if program is None:
        return missing("seccomp", "no seccomp filter", explain_missing_filter())
    return ok("seccomp", f"the kernel takes filters; Cove's has {len(program) // 8} instructions")


def check_cgroups() -> Check:
    """Say which groups can be made, and what they limit."""
    found = find_hierarchies()
    limits = sorted({*found.controllers, *found.v1})
    enforced = f"limits: {', '.join(limits)}" if limits else "no limits on memory, cpus and pids"
    if found.unified is None:
        advice = "Cove works without: trees are ended by a subreaper, which is slower. " + _delegation()
        return warning("cgroups", f"no group of version 2 can be made; tree kill: subreaper; {enforced}", advice)
    text = f"{_versions(found)} at {found.unified}; tree kill: cgroup; {enforced}"
    if not limits:
        return warning("cgroups", text, f"memory, cpus and pids cannot be limited. {_delegation()}")
    return ok("cgroups", text)


def _versions(found: Hierarchies) -> str:
    return "version 2, with controllers of version 1," if found.v1 else "version 2"


def _delegation() -> str:
    if is_root():
        return "Mount the unified hierarchy (systemd does: `systemd.unified_cgroup_hierarchy=1`) writable for Cove."
    return "Start your program in a group of its own: `systemd-run --user --scope -p Delegate=yes -- PROGRAM`."


def check_shared_limits() -> Check:
    """Look at the limits that all sandboxes of a user share."""
    instances = int(_INOTIFY_INSTANCES.read_text())
    return judge_inotify(instances, has_own_users=is_root())


def judge_inotify(instances: int, *, has_own_users: bool) -> Check:
    """Warn of a limit of the user's that few sandboxes together use up."""
    name = "limits of the user"
    if has_own_users:
        return ok(name, "each sandbox has a user, and so limits, of its own")
    share = inotify_limits(instances, 1)["max_inotify_instances"]
    text = f"{instances} inotify instances for all sandboxes and you, {share} for each sandbox"
    if instances >= _ENOUGH_INSTANCES:
        return ok(name, text)
    return warning(name, text, "For many sandboxes at once: `sudo sysctl fs.inotify.max_user_instances=1024`.")


def check_core_handler() -> Check:
    """Look at what the kernel does with core files."""
    return judge_core_pattern(_CORE_PATTERN.read_text().strip())


def judge_core_pattern(pattern: str) -> Check:
    """Warn of a handler for core files: it runs as root on the host, on what the program that crashed contains."""
    name = "core files"
    if not pattern.startswith(_CORE_HANDLERS):
        return ok(name, f"no program handles them (kernel.core_pattern is {pattern!r})")
    advice = (
        "Sandboxes are kept from a program by their core limit, those with isolation='none' are not. "
        "Where nobody reads crash reports: `sudo sysctl kernel.core_pattern=core`."
    )
    return warning(name, f"the kernel passes them to a handler: {pattern}", advice)


def check_disk() -> Check:
    """Say how limits on the disk are held."""
    reason = try_disk(default_home()) if default_home().is_dir() else "there is no state directory"
    if reason is None:
        exact = f"up to {LARGEST_IMAGE >> 30} GiB by a file system of the sandbox's own: writes fail when it is full"
        return ok("disk limits", f"held {exact}; larger ones by measuring")
    return warning("disk limits", f"held by measuring, and by ending what passes them: {reason}", _exact_disk(reason))


def _exact_disk(reason: str) -> str:
    if not is_root():
        return "run Cove as root to have them exact."
    if "not installed" in reason:
        return f"to have them exact: {install('e2fsprogs mount')}"
    return "to have them exact, Cove needs loop devices: `sudo modprobe loop` (in a container: on its host)."


def judge_snapshots(reason: str | None, *, can_upgrade: bool) -> Check:
    """Say what lets layers be shown as overlays: a newer kernel, or another disk."""
    if reason is None:
        return ok("snapshots", "layers: a snapshot, a fork or a restore copies nothing")
    advice = "Set COVE_HOME to a directory on a disk of the machine, of ext4, xfs or btrfs."
    if can_upgrade:
        advice = "Start a newer kernel: `sudo apt full-upgrade`, or a newer release of the system."
    return warning("snapshots", f"made by copying: {reason}", advice)
