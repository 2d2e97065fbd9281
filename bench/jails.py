"""Bare jails: bubblewrap around `python3 -I -S`, without Cove."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cove.core.jail import jail_arguments
from cove.linux.descriptors import sealed_file
from cove.linux.thread_user import as_user
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
def full_jail() -> Iterator[Callable[[list[str]], None]]:
    """Runs a program as a real sandbox's own user, with its arguments and its filter, around a place of its own."""
    machine = examine_machine()
    place = machine.home.allocate()
    with sealed_file(machine.require_filter()) as filter, open("/dev/null", "wb") as null:
        for file in (filter, null):
            os.set_inheritable(file.fileno(), True)
        arguments = jail_arguments(
            SandboxSpec(), machine.host(place), (), {}, info_descriptor=null.fileno(), filter_descriptor=filter.fileno()
        )

        def run(program: list[str]) -> None:
            filter.seek(0)
            with as_user(place.user_id):
                run_jail([machine.require_bubblewrap(), *arguments, *program])

        try:
            yield run
        finally:
            machine.home.release(place)


def run_jail(command: list[str]) -> None:
    """Start it and wait for its end."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, close_fds=False)
