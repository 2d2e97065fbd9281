"""The zygote: a process with everything imported that forks runtimes and the helpers that attach to their jails.

It accepts, forks, and reads nothing itself.

It is single-threaded, since a fork of a process with several threads can deadlock. It holds no key and no socket of the
gateway's, and ends with the supervisor. Runtimes do not.
"""

import fcntl
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
from cove.server.announcement import LogFormat
from cove.server.runtime.deaths import Deaths
from cove.server.runtime.process import run_runtime
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.start_protocol import listen
from cove.server.tracing import preload

_CONNECTION, _STARTING = 3, 4
_ABOVE = 16

log = logging.getLogger("cove.server")


def main() -> None:
    """Arguments: the supervisor's pid, a descriptor to close when ready, one for `run_runtime`, the format of lines."""
    parent, ready, starting = map(int, sys.argv[1:4])
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
    preload()
    gc.collect()
    gc.freeze()  # pages that the collector never touches stay shared with every runtime
    deaths = Deaths(directory, LogFormat(sys.argv[4]), parent)
    signal.signal(signal.SIGCHLD, lambda *_: deaths.reap())
    deaths.watch_others()
    os.close(ready)
    _accept_and_fork(listeners, starting, directory, machine, deaths)


def _examine() -> Machine | None:
    """Examine the machine; one that lacks something is looked at again for each sandbox, which says what."""
    try:
        return examine_machine()
    except CoveError:
        return None


def _accept_and_fork(
    listeners: list[socket.socket], starting: int, directory: Directory, machine: Machine | None, deaths: Deaths
) -> NoReturn:
    by_number = {listener.fileno(): listener for listener in listeners}
    for number in by_number:
        deaths.poll.register(number, select.POLLIN)
    while True:
        for number, _ in deaths.poll.poll():
            listener = by_number.get(number)
            if listener is None:
                deaths.tell(number)
                continue
            connection, _ = listener.accept()
            is_helper = connection.type == socket.SOCK_SEQPACKET
            child = _fork()
            if child > 0 and not is_helper:
                deaths.runtimes.add(child)
            if child == 0:
                for each in listeners:
                    each.detach()
                descriptor = connection.detach()
                run = partial(_run, descriptor, starting, directory, machine)
                work_and_exit(partial(_help, descriptor) if is_helper else run)
            connection.close()


def _fork() -> int:
    """Fork; -1 when there are too many processes: whoever asked sees its connection end."""
    try:
        return os.fork()
    except OSError as error:
        log.error("cannot fork: %s", error)
        return -1


def _run(descriptor: int, starting: int, directory: Directory, machine: Machine | None) -> None:
    _let_go_of_the_zygote("cove-runtime", descriptor, starting)
    run_runtime(socket.socket(fileno=_CONNECTION), _STARTING, directory, machine)


def _help(descriptor: int) -> None:
    _let_go_of_the_zygote("cove-attach", descriptor)
    serve(socket.socket(fileno=_CONNECTION))


def _let_go_of_the_zygote(name: str, *kept: int) -> None:
    """A session of its own, signals as they are by default, and no descriptor but stderr and these, from 3 on."""
    os.setsid()
    name_process(name)
    for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    lifted = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for descriptor in kept]
    for at, descriptor in enumerate(lifted, _CONNECTION):
        os.dup2(descriptor, at, inheritable=False)
    os.closerange(_CONNECTION + len(kept), os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)


if __name__ == "__main__":
    main()
