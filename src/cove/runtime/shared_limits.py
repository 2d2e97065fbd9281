"""Keep one sandbox from exhausting what all share: inodes in memory, terminals, inotify."""

import fcntl
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cove.core.limits import MOUNT_OPTIONS, inotify_limits
from cove.linux import reconfigure

_SECONDS = 10.0
_SYSCTLS = "/proc/sys/user"
_OF_THE_USER = "/proc/sys/fs/inotify"
# ioctl_nsfs(2): the user namespace that owns another namespace.
_NS_GET_USERNS = 0xB701


class Holder(Protocol):
    """Sets the limits of one jail, once its mounts are there."""

    def hold(self, agent: int) -> str | None:
        """Set them for the jail whose agent has that pid on the host; why they do not hold, or None. Blocks."""

    def close(self) -> None:
        """Let go, at whatever point. Idempotent. Blocks, but not for long."""


def make_holder(interpreter: str) -> Holder:
    """Choose by who we are. Begin early what takes time. Blocks."""
    return RootHolder() if os.geteuid() == 0 else UserHolder(interpreter)


class RootHolder(Holder):
    """Root reaches every mount, and its sandboxes have users, and so user limits, of their own."""

    def hold(self, agent: int) -> str | None:
        try:
            for mount, options in MOUNT_OPTIONS.items():
                reconfigure.reconfigure(f"/proc/{agent}/root{mount}", options)
        except OSError as error:
            return str(error)
        return None

    def close(self) -> None:
        """Do nothing: root holds nothing."""


class UserHolder(Holder):
    """A plain user's helper process: its interpreter starts while the jail does."""

    def __init__(self, interpreter: str) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(_SECONDS)
        with theirs:
            words = [*_sysctls(), *(f"{mount}:{options}" for mount, options in MOUNT_OPTIONS.items())]
            program = [interpreter, "-I", "-S", "-B", reconfigure.__file__, *words]
            self._process = subprocess.Popen(
                program, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}, cwd="/"
            )

    def hold(self, agent: int) -> str | None:
        try:
            mounts = os.open(f"/proc/{agent}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            try:
                user = fcntl.ioctl(mounts, _NS_GET_USERNS)
                try:
                    socket.send_fds(self._sock, [b"\0"], [user, mounts])
                finally:
                    os.close(user)
            finally:
                os.close(mounts)
            said = self._sock.recv(1024)
        except OSError as error:
            return str(error)
        return None if said == reconfigure.DONE else said.decode("utf-8", "replace") or "the helper ended"

    def close(self) -> None:
        self._sock.close()
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()


def _sysctls() -> list[str]:
    limits: Mapping[str, int] = inotify_limits(_read("max_user_instances"), _read("max_user_watches"))
    return [f"{_SYSCTLS}/{name}={value}" for name, value in limits.items()]


def _read(name: str) -> int:
    return int(Path(_OF_THE_USER, name).read_text())
