"""Two machines on one link, as network namespaces: a test can cut the link between them."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_CLONE_NEWNET = 0x40000000
_HERE = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces take root, and ip(8) of iproute2",
)


class Machine:
    """A network namespace with one address; what is opened `inside` belongs to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        with _returning():
            _check(_libc.unshare(_CLONE_NEWNET))
            self.descriptor = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and the processes it starts, are on that machine."""
        with _returning():
            _check(_libc.setns(self.descriptor, _CLONE_NEWNET))
            yield

    def run(self, *command: str) -> None:
        with self.inside():
            subprocess.run(command, check=True, pass_fds=[self.descriptor])

    def set_link(self, state: str) -> None:
        self.run("ip", "link", "set", "link0", state)


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Connected to each other, and to nothing else."""
    one, two = Machine("192.0.2.1"), Machine("192.0.2.2")
    try:
        there = f"/proc/self/fd/{two.descriptor}"
        with one.inside():
            link = ["ip", "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", there]
            subprocess.run(link, check=True, pass_fds=[two.descriptor])
        for machine in (one, two):
            machine.run("ip", "link", "set", "lo", "up")
            machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "link0")
            machine.set_link("up")
        yield one, two
    finally:
        for machine in (one, two):
            os.close(machine.descriptor)


@contextmanager
def _returning() -> Iterator[None]:
    before = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _check(_libc.setns(before, _CLONE_NEWNET))
        os.close(before)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
