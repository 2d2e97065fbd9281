"""Run rclone, confined as core/bucket says, as the sandbox's user; it ends with our program. All calls here block."""

import os
import re
import select
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cove.attach import Target
from cove.core.bucket import MOUNT_POINT, RcloneJail, secrets_in
from cove.core.jail import place_mark
from cove.errors import SandboxUnavailable
from cove.linux.pidfd import parent_of, reap, wait_for_end
from cove.linux.thread_user import as_user
from cove.runtime.home import HostUser, Place
from cove.runtime.machine import Machine

_START_SECONDS = 20.0
_MOST_MESSAGE = 4096
_FUSE = Path("/dev/fuse")
_FUSE_DEVICE = os.makedev(10, 229)
_FOR_ALL = 0o006


@dataclass(slots=True)
class Rclone:
    """One process of rclone. `pid` is bubblewrap's, our child; `child` is rclone's own, held by `child_pidfd`."""

    pid: int
    pidfd: int
    errors: int
    info: int
    user_id: int | None
    secrets: list[str]
    child: int = 0
    child_pidfd: int = -1
    _message: bytes = field(default=b"", repr=False)

    @property
    def target(self) -> Target:
        """Return its jail, to clone its mount from."""
        return Target(self.child_pidfd, self.child, self.user_id)

    def wait(self, seconds: float) -> bool:
        """Return whether it has ended after at most so long; reads what it complains about meanwhile."""
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.register(self.errors, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll(max(until - time.monotonic(), 0) * 1000)}
            self.read_errors()
            if self.pidfd in ready:
                return True
            if self.errors in ready and not self._is_open():
                poll.unregister(self.errors)
            if time.monotonic() >= until:
                return False

    def _is_open(self) -> bool:
        poll = select.poll()
        poll.register(self.errors, select.POLLIN)
        return not any(event & select.POLLHUP for _, event in poll.poll(0))

    def read_errors(self) -> None:
        """Take what it has said, so that it never waits for a reader; the last of it is kept."""
        try:
            while data := os.read(self.errors, _MOST_MESSAGE):
                self._message = (self._message + data)[-_MOST_MESSAGE:]
        except BlockingIOError:
            return

    @property
    def message(self) -> str:
        """The last that it said, without secrets."""
        text = self._message.decode("utf-8", "replace")
        for secret in self.secrets:
            text = text.replace(secret, "***")
        lines = [re.sub(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", "", line) for line in text.splitlines() if line.strip()]
        return " ".join(lines[-1:])[-500:] or "it gave no reason"

    def tell_to_stop(self) -> None:
        """Ask it to end."""
        _signal(self.child_pidfd if self.child_pidfd >= 0 else self.pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        _signal(self.pidfd, signal.SIGKILL)

    def close(self) -> int | None:
        """End it, and wait until it is gone; returns its exit code."""
        self.kill()
        if self.child_pidfd >= 0:
            _signal(self.child_pidfd, signal.SIGKILL)
            wait_for_end(self.child_pidfd, None)
            os.close(self.child_pidfd)
        code = reap(self.pid)
        os.close(self.pidfd)
        os.close(self.errors)
        os.close(self.info)  # bwrap writes it in two pieces, and would be killed between them
        return code


def start_rclone(
    machine: Machine,
    place: Place,
    user: HostUser,
    jail: RcloneJail,
    command: list[str],
    env: dict[str, str],
    credentials: str | None,
) -> Rclone:
    """Start it in that jail, as that user. Only in the thread that lives as long as we do: it ends with that."""
    with ExitStack() as undo, ExitStack() as theirs:
        info, told = _pipe(undo, theirs)
        errors, complains = _pipe(undo, theirs)
        words = [machine.require_bubblewrap(), *jail.arguments(place_mark(place.key), told), *command]
        process = _popen(words, env, user, complains, told)
        undo.pop_all()
    process.returncode = 0  # from here on the child is waited for by its pidfd
    started = Rclone(process.pid, os.pidfd_open(process.pid), errors, info, user.id, secrets_in(credentials))
    _pin(started, info)
    return started


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    os.set_blocking(read, False)
    return read, write


def _popen(words: list[str], env: dict[str, str], user: HostUser, errors: int, info: int) -> "subprocess.Popen[bytes]":
    try:
        with as_user(user.id, user.group, user.others):
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(info,),
                env=env,
                cwd="/",
                start_new_session=True,
            )
    except OSError as error:
        raise SandboxUnavailable(f"rclone did not start: {error.strerror or error}") from error


def _pin(started: Rclone, info: int) -> None:
    """Hold rclone itself, whose pid bubblewrap tells; one that has ended already has none."""
    poll = select.poll()
    poll.register(info, select.POLLIN)
    if not poll.poll(_START_SECONDS * 1000):
        return
    found = re.search(rb'"child-pid": *(\d+)', os.read(info, 4096))
    if found is None:
        return
    try:
        pidfd = os.pidfd_open(int(found[1]))
    except ProcessLookupError:
        return
    try:
        is_its = parent_of(int(found[1])) == started.pid
    except OSError:
        is_its = False
    if not is_its:
        os.close(pidfd)
        return
    started.child, started.child_pidfd = int(found[1]), pidfd


def wait_until_mounted(started: Rclone) -> bool:
    """Wait until it serves its mount point; False when it has ended instead, or takes too long: mountinfo polls."""
    until = time.monotonic() + _START_SECONDS
    if started.child_pidfd < 0:
        return False
    try:
        while time.monotonic() < until:
            # Opened anew: what it shows is what was the process's root then, and bubblewrap changes that.
            with open(f"/proc/{started.child}/mountinfo", "rb", buffering=0) as mounts:
                if _is_mounted(mounts.readall()):
                    return True
                if not _wait_for_change(started, mounts.fileno(), until):
                    return False
    except OSError:
        return False
    return False


def _wait_for_change(started: Rclone, mounts: int, until: float) -> bool:
    """Wait until something is mounted; False when it has ended."""
    poll = select.poll()
    poll.register(mounts, select.POLLPRI | select.POLLERR)
    poll.register(started.pidfd, select.POLLIN)
    poll.register(started.child_pidfd, select.POLLIN)
    ready = {number for number, _ in poll.poll((until - time.monotonic()) * 1000)}
    started.read_errors()
    return not ready & {started.pidfd, started.child_pidfd}


def _is_mounted(mounts: bytes) -> bool:
    lines = mounts.splitlines()
    return any(line.split(b" ")[4] == MOUNT_POINT.encode() and b" - fuse" in line for line in lines)


def find_fuse(user: HostUser, directory: Path) -> str | None:
    """The device that the sandbox's user can open; as root one is made for it. None where there is none."""
    try:
        mode = _FUSE.stat().st_mode
        if user.id is None or user.group is None:
            return str(_FUSE) if os.access(_FUSE, os.R_OK | os.W_OK) else None
        if mode & _FOR_ALL == _FOR_ALL:
            return str(_FUSE)
        own = directory / "fuse"
        if not own.exists():
            os.mknod(own, 0o020600, _FUSE_DEVICE)
            os.chown(own, user.id, user.group)
    except OSError:
        return None
    return str(own)


def _signal(pidfd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
