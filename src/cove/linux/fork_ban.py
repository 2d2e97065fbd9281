"""Keep one process from forking for a while: RLIMIT_NPROC, set from outside by prlimit(2)."""

import os
import resource
import select
import subprocess
from pathlib import Path

_NAMESPACE_PIDS = "NSpid:"
_PARENT = "PPid:"
_LIMIT = "Max processes"
_HELPER_SECONDS = 5.0


class ForkBan:
    """A process that cannot fork until `lift`. Root can: the limit does not bind it."""

    def __init__(self, pid: int, pidfd: int, user_id: int | None, limits: tuple[int, int]) -> None:
        self._pid = pid
        self._pidfd = pidfd
        self._user_id = user_id
        self._soft, self._hard = limits

    def begin(self) -> bool:
        """Ban it; returns whether that could be done. Blocks."""
        return self._set(0)

    def lift(self) -> None:
        """Let it fork as before. Blocks. Idempotent."""
        if self._pidfd >= 0:
            self._set(self._soft)
            os.close(self._pidfd)
            self._pidfd = -1

    def _set(self, soft: int) -> bool:
        if not _is_alive(self._pidfd):
            return False
        try:
            resource.prlimit(self._pid, resource.RLIMIT_NPROC, (soft, self._hard))
        except PermissionError:
            return self._user_id is not None and self._set_as_user(self._user_id, soft)
        except OSError:
            return False  # it has just ended
        return True

    def _set_as_user(self, user_id: int, soft: int) -> bool:
        """Root without CAP_SYS_RESOURCE may not, but the process's own user may."""
        words = ["unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, self._hard)]
        command = ["prlimit", f"--pid={self._pid}", f"--nproc={':'.join(words)}"]
        try:
            done = subprocess.run(
                command,
                user=user_id,
                group=user_id,
                extra_groups=[],
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_HELPER_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return False  # there is no such program here
        return done.returncode == 0


def ban_forks(parent: int, pid_inside: int, user_id: int | None) -> ForkBan | None:
    """Ban the child of `parent` that has this pid in the innermost of its namespaces; None where that cannot be done.

    Reads /proc. A pid is a number that can be used again: one that still has the parent when a pidfd holds it is the
    child, and as long as the pidfd says that it lives the number is its own. Blocks.
    """
    try:
        for pid in map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()):
            if int(_facts(pid)[_NAMESPACE_PIDS][-1]) == pid_inside:
                return _ban(parent, pid, user_id)
    except (OSError, KeyError):
        return None  # it has ended, or /proc does not show it
    return None


def _ban(parent: int, pid: int, user_id: int | None) -> ForkBan | None:
    pidfd = os.pidfd_open(pid)
    try:
        is_child = int(_facts(pid)[_PARENT][0]) == parent
        limits = _limits(pid)
    except (OSError, KeyError):
        os.close(pidfd)
        raise
    ban = ForkBan(pid, pidfd, user_id, limits)
    if is_child and ban.begin():
        return ban
    os.close(pidfd)
    return None


def _is_alive(pidfd: int) -> bool:
    return not select.select([pidfd], [], [], 0)[0]


def _facts(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    return {words[0]: words[1:] for line in lines if (words := line.split())}


def _limits(pid: int) -> tuple[int, int]:
    _, _, rest = Path(f"/proc/{pid}/limits").read_text().partition(_LIMIT)
    soft, hard = (resource.RLIM_INFINITY if word == "unlimited" else int(word) for word in rest.split()[:2])
    return soft, hard
