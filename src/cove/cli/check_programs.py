"""Check the programs, directories and users that Cove works with."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from cove.cli.check import Check, install, is_root, missing, ok, warning
from cove.cli.check_packages import has_node_packages
from cove.core.jail import SYSTEM_PATH, USER_ID
from cove.core.users import FIRST_RANGE, RANGE_USERS, RANGES
from cove.errors import CoveError
from cove.linux.interpreter import find_interpreter
from cove.linux.subordinate import SLICE_USERS, explain_missing, find_subordinates
from cove.linux.user_map import can_map_users
from cove.local.state import default_home
from cove.runtime.home import Home
from cove.runtime.interpreters import NODE_COMMAND, OLDEST_NODE, find_node
from cove.runtime.user_slices import explain_refusal

_TRIAL_SECONDS = 30.0
_FUSE = Path("/dev/fuse")
_IMAGE_USERS = "users of images"
_EMULATED = "one for each sandbox; root is emulated for those that are made with user='root'"
_ELSEWHERE = "Set COVE_HOME to a directory you can write."


def check_python() -> Check:
    """Name the Python that runs Cove."""
    return ok("Python", f"{platform.python_version()}, {sys.executable}")


def check_interpreter() -> Check:
    """Look for a Python that the sandbox can read."""
    found = find_interpreter(0 if is_root() else None)
    if found is None:
        return missing(
            "interpreter for the sandbox",
            "no Python 3.10 or newer that the sandbox's user can read",
            f"{install('python3')} One below a private home directory cannot be used when Cove runs as root.",
        )
    return ok("interpreter for the sandbox", f"{'.'.join(map(str, found.version))}, {found.path}")


def check_user() -> Check:
    """Say which user a sandbox has on the machine."""
    if not is_root():
        return ok("user of the sandbox", f"your own (uid {os.geteuid()}); inside it is uid {USER_ID}")
    return ok("user of the sandbox", f"one of its own for each; inside it is uid {USER_ID}")


def check_home() -> Check:
    """Open the state directory."""
    path = default_home()
    try:
        Home(path).open()
    except CoveError as error:
        return missing("state directory", str(path), error.message)
    except OSError as error:
        return missing("state directory", f"{path}: {error.strerror}", _ELSEWHERE)
    if not os.access(path / "sandboxes", os.W_OK):
        return missing("state directory", f"{path} cannot be written: it is another user's", _ELSEWHERE)
    return ok("state directory", str(path))


def _check_program(name: str, purpose: str) -> Check:
    """Only the system's directories are visible inside, so only those are searched."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if path is not None:
        return ok(f"{name} (optional)", path)
    elsewhere = shutil.which(name)
    found = f"{elsewhere} is not visible inside" if elsewhere else "not installed"
    return warning(f"{name} (optional)", found, f"needed for {purpose}: {install(name)}")


def check_node() -> Check:
    """Look for a Node.js that is new enough, and for the packages of its executor."""
    path = find_node()
    version = None if path is None else _node_version(path)
    return judge_node(shutil.which("node"), path, version, has_packages=has_node_packages())


def judge_node(anywhere: str | None, path: str | None, version: int | None, *, has_packages: bool) -> Check:
    """Say what JavaScript and TypeScript lack: a Node.js below /usr, a newer one, or packages of Cove's own."""
    name = "node (optional)"
    advice = f"JavaScript and TypeScript need Node.js {OLDEST_NODE} or newer below /usr: {NODE_COMMAND}."
    if path is None:
        return warning(name, f"{anywhere} is not below /usr" if anywhere else "not installed", advice)
    if version is None or version < OLDEST_NODE:
        return warning(name, f"{path} is {version or 'not usable'}", advice)
    if not has_packages:
        rebuild = f"install a wheel of Cove that has them, or in a checkout: {install('npm')} Then `make setup`."
        return warning(name, f"{version}, {path}; packages of its executor were not installed with Cove", rebuild)
    return ok(name, f"{version}, {path}")


def _node_version(path: str) -> int | None:
    try:
        end = subprocess.run([path, "--version"], check=True, capture_output=True, text=True, timeout=_TRIAL_SECONDS)
        return int(end.stdout.lstrip("v").partition(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def check_git() -> Check:
    """Look for git."""
    return _check_program("git", "repositories")


def check_buckets() -> Check:
    """Look for what mounts buckets."""
    return judge_buckets(
        has_rclone=shutil.which("rclone", path=SYSTEM_PATH) is not None,
        has_fuse=shutil.which("fusermount3", path=SYSTEM_PATH) is not None,
        can_open=_FUSE.exists() and (is_root() or os.access(_FUSE, os.R_OK | os.W_OK)),
    )


def judge_buckets(*, has_rclone: bool, has_fuse: bool, can_open: bool) -> Check:
    """Say whether buckets can be mounted, copied, or neither."""
    name = "buckets (optional)"
    if not has_rclone:
        return warning(name, "rclone is not installed", f"needed for buckets: {install('rclone')}")
    if not has_fuse:
        return warning(name, "fusermount3 is missing: they are copied", f"to mount them: {install('fuse3')}")
    if not can_open:
        return warning(name, f"{_FUSE} cannot be opened: they are copied", f"to mount them: `sudo chmod 666 {_FUSE}`")
    return ok(name, "rclone can mount them")


def check_image_users() -> Check:
    """Say whether the users of an image are real."""
    if not is_root():
        return judge_subordinates(*_try_subordinates())
    return judge_users(can_map=can_map_users(FIRST_RANGE, RANGES * RANGE_USERS))


def _try_subordinates() -> tuple[int, str, str]:
    """Return how many sandboxes can have subordinate users, or what is missing, and what brings it."""
    lacking = explain_missing()
    if lacking is not None:
        return 0, *lacking
    found = find_subordinates()
    refusal = "" if found is None else explain_refusal(found)
    return 0 if found is None or refusal else found.slices, refusal or "", ""


def judge_subordinates(slices: int, missing: str, command: str) -> Check:
    """Say whether a plain user's sandboxes have real users, and what those without can do."""
    if slices:
        found = f"real: {slices} sandboxes on images can each have {SLICE_USERS} subordinate users of yours"
        return ok(_IMAGE_USERS, found)
    advice = f"`{command}` for real ones, or run Cove as root." if command else "run Cove as root to have real ones."
    return warning(_IMAGE_USERS, f"{_EMULATED}; {missing}", advice)


def judge_users(*, can_map: bool) -> Check:
    """Say whether root's sandboxes have real users, and what those without can do."""
    if can_map:
        return ok(_IMAGE_USERS, f"real: each sandbox on an image has {RANGE_USERS} users of its own")
    last = FIRST_RANGE + RANGES * RANGE_USERS - 1
    return warning(
        _IMAGE_USERS,
        _EMULATED,
        f"root lacks the rights or the users for more: Cove needs CAP_SYS_ADMIN, and the host's users from "
        f"{FIRST_RANGE} to {last}, which the user namespace of a container often does not have.",
    )
