"""Bare jails: bubblewrap around `python3 -I -S`, without Cove."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from cove.core.jail import jail_arguments
from cove.model import SandboxSpec
from cove.runtime.machine import examine_machine

_ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def plain_jail() -> list[str]:
    """The least that runs the system's Python: /usr, /proc, /dev and every namespace."""
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    for name in _ROOT_LINKS:
        if os.path.islink(f"/{name}"):
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            command += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*command, "--proc", "/proc", "--dev", "/dev"]


def python(code: str) -> list[str]:
    """The system's Python as the agent is started."""
    return ["/usr/bin/python3", "-I", "-S", "-c", code]


@contextmanager
def full_jail() -> Iterator[list[str]]:
    """The arguments of a real sandbox, as its own user, around a place of its own."""
    machine = examine_machine()
    place = machine.home.allocate()
    null = os.open("/dev/null", os.O_WRONLY)
    os.set_inheritable(null, True)
    try:
        as_user: list[str] = []
        if place.user_id is not None and machine.set_user is not None:
            as_user = [machine.set_user, f"--reuid={place.user_id}", f"--regid={place.user_id}", "--clear-groups"]
        arguments = jail_arguments(SandboxSpec(), machine.host(place), info_descriptor=null)
        yield [*as_user, machine.require_bubblewrap(), *arguments]
    finally:
        os.close(null)
        machine.home.release(place)


def run_jail(command: list[str]) -> None:
    """Start it and wait for its end."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, close_fds=False)
