"""Find a Python that the sandbox's user can run."""

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass

from cove.linux.path_walk import closed_directory

_OLDEST = (3, 10)
_ASK = "import sys; print(sys.version_info[0], sys.version_info[1], sys.base_prefix, sep='\\n')"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python on the host; `prefix` has to be bound into the jail when it is not below /usr."""

    path: str
    version: tuple[int, int]
    prefix: str | None


def find_interpreter(user_id: int | None) -> Interpreter | None:
    """Return the first suitable Python; with a user_id, one that this other user can read."""
    for candidate in _candidates():
        found = _examine(candidate)
        if found is None or found.version < _OLDEST:
            continue
        if found.prefix is None or user_id is None or is_reachable(found.prefix):
            return found
    return None


def is_reachable(path: str) -> bool:
    """Return whether a user who owns nothing here can read this directory: others can search every parent."""
    real = os.path.realpath(path)
    return bool(os.stat(real).st_mode & stat.S_IROTH) and closed_directory(real) is None


def _candidates() -> list[str]:
    own = os.path.realpath(sys.executable)
    found = ["/usr/bin/python3", "/usr/local/bin/python3", own, shutil.which("python3") or own]
    return [path for path in dict.fromkeys(found) if os.access(path, os.X_OK)]


def _examine(path: str) -> Interpreter | None:
    try:
        answer = subprocess.run([path, "-I", "-S", "-c", _ASK], capture_output=True, text=True, timeout=20, check=True)
        major, minor, prefix = answer.stdout.splitlines()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    real = os.path.realpath(path)
    if real.startswith("/usr/"):
        return Interpreter(path, (int(major), int(minor)), None)
    return Interpreter(real, (int(major), int(minor)), prefix)
