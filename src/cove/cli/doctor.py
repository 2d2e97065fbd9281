"""`cove doctor`: check this machine, and say what is missing and what to do about it."""

import asyncio
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cove import AsyncSandbox, NetworkPolicy
from cove.cli.descriptors import printable
from cove.cli.table import print_json
from cove.core.jail import SYSTEM_PATH, USER_ID
from cove.core.limits import inotify_limits
from cove.errors import CoveError, SandboxUnavailable
from cove.linux.bubblewrap import OLDEST, bubblewrap_version, explain_refusal, find_bubblewrap
from cove.linux.cgroup import Hierarchies, find_hierarchies
from cove.linux.interpreter import find_interpreter
from cove.linux.seccomp import explain_missing_filter, find_filter
from cove.linux.thread_user import as_user
from cove.local.state import default_home
from cove.runtime.disk import try_disk
from cove.runtime.home import Home
from cove.runtime.interpreters import find_node, find_python_environment
from cove.runtime.network import NO_NF_TABLES

if TYPE_CHECKING:
    from rich.table import Table

_TRIAL_SECONDS = 30.0
_NOBODY = 65534
_OLDEST_NODE = 20
_FUSE = Path("/dev/fuse")
_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_ENOUGH_INSTANCES = 512
# core(5): a program, a socket.
_CORE_HANDLERS = ("|", "@")
_ELSEWHERE = "Set COVE_HOME to a directory you can write."


class Status(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at; `advice` says what to do when it is not ok."""

    name: str
    status: Status
    found: str
    advice: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of a run. Isolation is possible when a real sandbox has run a command."""

    isolation_possible: bool
    checks: list[Check]


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False) -> None:
    """Check what Cove needs from this machine; exit code 1 when isolation is not possible."""
    report = examine()
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    raise typer.Exit(0 if report.isolation_possible else 1)


def examine() -> Report:
    """Look at everything; the trial comes last, because it needs all that is checked before."""
    checks = [check() for check in _CHECKS]
    trial = asyncio.run(_check_trial())
    return Report(isolation_possible=trial.status is Status.OK, checks=[*checks, trial])


def _ok(name: str, found: str) -> Check:
    return Check(name=name, status=Status.OK, found=found)


def _warning(name: str, found: str, advice: str) -> Check:
    return Check(name=name, status=Status.WARNING, found=found, advice=advice)


def _missing(name: str, found: str, advice: str) -> Check:
    return Check(name=name, status=Status.MISSING, found=found, advice=advice)


def _is_root() -> bool:
    return os.geteuid() == 0


def _check_python() -> Check:
    return _ok("Python", f"{platform.python_version()}, {sys.executable}")


def _check_bubblewrap() -> Check:
    path = find_bubblewrap()
    if path is None:
        return _missing("bubblewrap", "not installed", _install("bubblewrap"))
    version = bubblewrap_version(path)
    if version is None:
        return _missing("bubblewrap", f"{path} does not tell its version", _install("bubblewrap"))
    found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
    if version < OLDEST:
        return _missing("bubblewrap", f"{found}, {path}", f"Cove needs {oldest} or newer: {_install('bubblewrap')}")
    return _ok("bubblewrap", f"{found}, {path}")


def _check_namespaces() -> Check:
    """As the kind of user that sandboxes run as: root may do what others may not."""
    path = find_bubblewrap()
    if path is None:
        return _missing("namespaces", "not tried: bubblewrap is not installed", _install("bubblewrap"))
    complaint = _try_namespaces(path)
    if complaint is None:
        return _ok("namespaces", "user, pid, network, ipc and uts namespaces can be made")
    return _missing("namespaces", "the kernel refuses them", explain_refusal(complaint))


def _try_namespaces(bubblewrap: str) -> str | None:
    """None, or what bubblewrap complained about; as root it is tried as another user, as sandboxes are."""
    jail = ["--unshare-all", "--disable-userns", "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc", "--"]
    try:
        with as_user(_NOBODY if _is_root() else None):
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


def _check_seccomp() -> Check:
    program = find_filter()
    if program is None:
        return _missing("seccomp", "no seccomp filter", explain_missing_filter())
    return _ok("seccomp", f"the kernel takes filters; Cove's has {len(program) // 8} instructions")


def _check_cgroups() -> Check:
    found = find_hierarchies()
    limits = sorted({*found.controllers, *found.v1})
    enforced = f"limits: {', '.join(limits)}" if limits else "no limits on memory, cpus and pids"
    if found.unified is None:
        advice = "Cove works without: trees are ended by a subreaper, which is slower. " + _delegation()
        return _warning("cgroups", f"no group of version 2 can be made; tree kill: subreaper; {enforced}", advice)
    text = f"{_versions(found)} at {found.unified}; tree kill: cgroup; {enforced}"
    if not limits:
        return _warning("cgroups", text, f"memory, cpus and pids cannot be limited. {_delegation()}")
    return _ok("cgroups", text)


def _versions(found: Hierarchies) -> str:
    return "version 2, with controllers of version 1," if found.v1 else "version 2"


def _delegation() -> str:
    if _is_root():
        return "Mount the unified hierarchy (systemd does: `systemd.unified_cgroup_hierarchy=1`) writable for Cove."
    return "Start your program in a group of its own: `systemd-run --user --scope -p Delegate=yes -- PROGRAM`."


def _check_interpreter() -> Check:
    found = find_interpreter(0 if _is_root() else None)
    if found is None:
        return _missing(
            "interpreter for the sandbox",
            "no Python 3.10 or newer that the sandbox's user can read",
            f"{_install('python3')} One below a private home directory cannot be used when Cove runs as root.",
        )
    return _ok("interpreter for the sandbox", f"{'.'.join(map(str, found.version))}, {found.path}")


def _check_user() -> Check:
    if not _is_root():
        return _ok("user of the sandbox", f"your own (uid {os.geteuid()}); inside it is uid {USER_ID}")
    return _ok("user of the sandbox", f"one of its own for each; inside it is uid {USER_ID}")


def _check_shared_limits() -> Check:
    instances = int(_INOTIFY_INSTANCES.read_text())
    return judge_inotify(instances, has_own_users=_is_root())


def judge_inotify(instances: int, *, has_own_users: bool) -> Check:
    """Warn of a limit of the user's that few sandboxes together use up."""
    name = "limits of the user"
    if has_own_users:
        return _ok(name, "each sandbox has a user, and so limits, of its own")
    share = inotify_limits(instances, 1)["max_inotify_instances"]
    text = f"{instances} inotify instances for all sandboxes and you, {share} for each sandbox"
    if instances >= _ENOUGH_INSTANCES:
        return _ok(name, text)
    return _warning(name, text, "For many sandboxes at once: `sudo sysctl fs.inotify.max_user_instances=1024`.")


def _check_core_handler() -> Check:
    return judge_core_pattern(_CORE_PATTERN.read_text().strip())


def judge_core_pattern(pattern: str) -> Check:
    """Warn of a handler for core files: it runs as root on the host, on what the program that crashed contains."""
    name = "core files"
    if not pattern.startswith(_CORE_HANDLERS):
        return _ok(name, f"no program handles them (kernel.core_pattern is {pattern!r})")
    advice = (
        "Sandboxes are kept from a program by their core limit, those with isolation='none' are not. "
        "Where nobody reads crash reports: `sudo sysctl kernel.core_pattern=core`."
    )
    return _warning(name, f"the kernel passes them to a handler: {pattern}", advice)


def _check_home() -> Check:
    path = default_home()
    try:
        Home(path).open()
    except CoveError as error:
        return _missing("state directory", str(path), error.message)
    except OSError as error:
        return _missing("state directory", f"{path}: {error.strerror}", _ELSEWHERE)
    if not os.access(path / "sandboxes", os.W_OK):
        return _missing("state directory", f"{path} cannot be written: it is another user's", _ELSEWHERE)
    return _ok("state directory", str(path))


def _check_disk() -> Check:
    reason = try_disk(default_home()) if default_home().is_dir() else "there is no state directory"
    if reason is None:
        return _ok("disk limits", "a file system of its own for each sandbox that has one: writes fail when it is full")
    found = f"held by measuring, and by ending what passes them: {reason}"
    return _warning("disk limits", found, "run Cove as root, with mkfs.ext4 and loop devices, to have them exact.")


def _check_program(name: str, purpose: str) -> Check:
    """Only the system's directories are visible inside, so only those are searched."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if path is not None:
        return _ok(f"{name} (optional)", path)
    elsewhere = shutil.which(name)
    found = f"{elsewhere} is not visible inside" if elsewhere else "not installed"
    package = "nodejs" if name == "node" else name
    return _warning(f"{name} (optional)", found, f"needed for {purpose}: {_install(package)}")


def _check_node() -> Check:
    check = _check_program("node", "JavaScript and TypeScript")
    if check.status is not Status.OK:
        return check
    path = find_node()
    version = None if path is None else _node_version(path)
    if path is None or version is None or version < _OLDEST_NODE:
        found = f"{check.found} is {'not below /usr' if path is None else version or 'not usable'}"
        return _warning(
            check.name, found, f"JavaScript and TypeScript need Node.js {_OLDEST_NODE}: {_install('nodejs')}"
        )
    return _ok(check.name, f"{version}, {path}")


def _node_version(path: str) -> int | None:
    try:
        end = subprocess.run([path, "--version"], check=True, capture_output=True, text=True, timeout=_TRIAL_SECONDS)
        return int(end.stdout.lstrip("v").partition(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _check_environment() -> Check:
    """The environment of Python contexts: whether it can be used is tried in a real sandbox."""
    path = find_python_environment(default_home())
    name = "Python contexts"
    if path is None:
        configured = os.environ.get("COVE_PYTHON")
        found = f"COVE_PYTHON is {configured}, which has no bin/python3" if configured else "no environment for them"
        return _warning(name, found, "`cove setup` makes one: IPython, numpy, pandas, matplotlib.")
    return asyncio.run(_try_context(name, path))


async def _try_context(name: str, path: Path) -> Check:
    try:
        async with AsyncSandbox.create() as sandbox:
            execution = await sandbox.run_code("6 * 7", timeout=_TRIAL_SECONDS)
    except SandboxUnavailable:
        return _warning(name, f"{path}, not tried: no sandbox starts", "See the other checks.")
    except (CoveError, OSError) as error:
        return _warning(name, f"{path} cannot be used", f"{error}. `cove setup --anew` makes the environment again.")
    if execution.text != "42":
        return _warning(name, f"{path}: {execution.error}", "`cove setup --anew` makes the environment again.")
    return _ok(name, str(path))


async def _try_network() -> Check:
    """Try whether a policy has every port."""
    try:
        async with AsyncSandbox.create(network=NetworkPolicy(allow=["cove.invalid"])) as sandbox:
            warnings = (await sandbox.info()).warnings
    except (CoveError, OSError) as error:
        return _warning("network policies", "not tried: no sandbox with one starts", f"{error}. See the other checks.")
    return judge_ports(any(NO_NF_TABLES in warning for warning in warnings))


def judge_ports(is_without: bool) -> Check:
    """Warn of a kernel without nf_tables: policies then have only the ports that they name."""
    name = "network policies"
    if not is_without:
        return _ok(name, "every TCP port can be allowed, and servers inside can have any from 1024 on (nf_tables)")
    advice = (
        "`internet` is ports 22, 80 and 443, and servers inside cannot have a port of a policy. To have every port: "
        "`sudo modprobe -a nf_tables nft_chain_nat nft_nat nft_ct` (in a container: on its host)."
    )
    return _warning(name, "only the ports that a policy names: " + NO_NF_TABLES, advice)


def _check_git() -> Check:
    return _check_program("git", "repositories")


def _check_buckets() -> Check:
    return judge_buckets(
        has_rclone=shutil.which("rclone", path=SYSTEM_PATH) is not None,
        has_fuse=shutil.which("fusermount3", path=SYSTEM_PATH) is not None,
        can_open=_FUSE.exists() and (_is_root() or os.access(_FUSE, os.R_OK | os.W_OK)),
    )


def judge_buckets(*, has_rclone: bool, has_fuse: bool, can_open: bool) -> Check:
    """Say whether buckets can be mounted, copied, or neither."""
    name = "buckets (optional)"
    if not has_rclone:
        return _warning(name, "rclone is not installed", f"needed for buckets: {_install('rclone')}")
    if not has_fuse:
        return _warning(name, "fusermount3 is missing: they are copied", f"to mount them: {_install('fuse3')}")
    if not can_open:
        return _warning(name, f"{_FUSE} cannot be opened: they are copied", f"to mount them: `sudo chmod 666 {_FUSE}`")
    return _ok(name, "rclone can mount them")


async def _check_trial() -> Check:
    name = "a real sandbox"
    try:
        async with AsyncSandbox.create() as sandbox:
            result = await sandbox.exec(["id", "-u"], timeout=_TRIAL_SECONDS)
            info = await sandbox.info()
    except CoveError as error:
        return _missing(name, "it did not start", error.message)
    except OSError as error:
        return _missing(name, "it did not start", f"{error}: see the checks above.")
    if not result.ok or result.stdout.strip() != str(USER_ID):
        return _missing(name, f"its first command {result.outcome}: {result.stderr.strip()}", "See the checks above.")
    return _ok(name, f"runs commands; isolation: {info.isolation}; tree kill: {info.tree_kill}")


def _install(package: str) -> str:
    """Return the command that installs a package, named as Debian and Ubuntu name it."""
    return f"`sudo apt install {package}` (Debian, Ubuntu; other systems have it too)."


_CHECKS: tuple[Callable[[], Check], ...] = (
    _check_python,
    _check_bubblewrap,
    _check_namespaces,
    _check_seccomp,
    _check_cgroups,
    _check_interpreter,
    _check_user,
    _check_shared_limits,
    _check_core_handler,
    _check_home,
    _check_disk,
    _check_environment,
    _check_node,
    _check_git,
    _check_buckets,
    lambda: asyncio.run(_try_network()),
)


def _print_report(report: Report) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_table(report.checks))
    if report.isolation_possible:
        console.print("\nIsolation works on this machine.", style="bold green")
    else:
        console.print("\nIsolation is not possible on this machine yet.", style="bold red")


def _table(checks: Iterable[Check]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    styles = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "red"}
    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(
            Text(check.status, styles[check.status]), Text(check.name), Text(printable(check.found), overflow="fold")
        )
        if check.advice:
            table.add_row("", "", Text(printable(check.advice), "bold", overflow="fold"))
    return table
