"""The zygote: a process with everything imported that forks runtimes and the helpers that attach to their jails.

It accepts, forks, and reads nothing itself.

It is single-threaded, since a fork of a process with several threads can deadlock. It holds no key and no socket of the
gateway's, and ends with the supervisor. Runtimes do not.
"""

import gc
import logging
import os
import select
import signal
import socket
import sys
from dataclasses import replace
from functools import partial
from typing import NoReturn

from cove.attach.program import serve
from cove.errors import CoveError
from cove.linux.forking import end_with_parent, name_process, work_and_exit
from cove.local.state import default_home
from cove.runtime.machine import Machine, examine_machine
from cove.server.runtime.process import run_runtime
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.start_protocol import listen

_CONNECTION = 3

log = logging.getLogger("cove.server")


def main() -> None:
    """Arguments: the pid of the supervisor, and a descriptor to close when requests are taken."""
    parent, ready = map(int, sys.argv[1:])
    end_with_parent(parent)
    name_process("cove-zygote")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the supervisor waits for signals and has them blocked
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    machine = _examine()
    directory = Directory(default_home())
    directory.forget_zygote()
    listeners = [listen(directory.zygote)]
    if machine is not None:
        helpers = directory.helpers(machine.attach.parent.name)
        listeners.append(listen(helpers, socket.SOCK_SEQPACKET))
        machine = replace(machine, attach_socket=str(helpers))
    gc.collect()
    gc.freeze()  # pages that the collector never touches stay shared with every runtime
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps: waitpid(2)
    os.close(ready)
    _accept_and_fork(listeners, directory, machine)


def _examine() -> Machine | None:
    """Examine the machine; one that lacks something is looked at again for each sandbox, which says what."""
    try:
        return examine_machine()
    except CoveError:
        return None


def _accept_and_fork(listeners: list[socket.socket], directory: Directory, machine: Machine | None) -> NoReturn:
    while True:
        for listener in select.select(listeners, [], [])[0]:
            connection, _ = listener.accept()
            try:
                child = os.fork()
            except OSError as error:  # too many processes: whoever asked sees its connection end
                log.error("cannot fork: %s", error)
                child = -1
            if child == 0:
                for each in listeners:
                    each.detach()
                is_helper = connection.type == socket.SOCK_SEQPACKET
                descriptor = connection.detach()
                work_and_exit(
                    partial(_help, descriptor) if is_helper else partial(_run, descriptor, directory, machine)
                )
            connection.close()


def _run(descriptor: int, directory: Directory, machine: Machine | None) -> None:
    _let_go_of_the_zygote(descriptor, "cove-runtime")
    run_runtime(socket.socket(fileno=_CONNECTION), directory, machine)


def _help(descriptor: int) -> None:
    _let_go_of_the_zygote(descriptor, "cove-attach")
    serve(socket.socket(fileno=_CONNECTION))


def _let_go_of_the_zygote(connection: int, name: str) -> None:
    """A session of its own, signals as they are by default, and no descriptor but the connection and stderr."""
    os.setsid()
    name_process(name)
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if connection != _CONNECTION:
        os.dup2(connection, _CONNECTION, inheritable=False)
    os.closerange(_CONNECTION + 1, os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)


if __name__ == "__main__":
    main()
