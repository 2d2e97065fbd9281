"""The supervisor of `cove serve`: starts the zygote and the workers, restarts those that die, and holds no state.

It is single-threaded and waits for signals only. The zygote is started before there is a key or a listening
socket, and as a program of its own, so that also one that is started later has neither.
"""

import errno
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn

import cove
from cove.errors import ImageNotFound, SandboxUnavailable
from cove.linux.cgroup import find_hierarchies
from cove.linux.file_lock import try_lock
from cove.linux.forking import close_in_forked_child, end_with_parent, name_process, work_and_exit
from cove.linux.syn_filter import drop_new_connections
from cove.local.state import LOCK_FILE, URL_FILE, replace_file
from cove.runtime.home import Home
from cove.runtime.kept_journals import forget_journals
from cove.server.announcement import Death, announce_death
from cove.server.cluster.agent_protocol import LEFT
from cove.server.cluster.companions import Companions
from cove.server.cluster.joining import read_token
from cove.server.cluster.peer import load_peer_key
from cove.server.cluster.ray_node import forget_ray_token, without_secrets
from cove.server.configuration import Configuration, OnStop
from cove.server.counters import clear_counts
from cove.server.gateway.auth import KEY_FILE, leave_key, load_key
from cove.server.gateway.turns import Activity
from cove.server.preview.exposures import address_of, write_address
from cove.server.sandboxes.capacity import write_capacity
from cove.server.sandboxes.cpu_shares import remove_empty_shares
from cove.server.sandboxes.destroy_sandbox import MOST_SECONDS, collect_garbage, destroy, seconds_to_next
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.members import write_members
from cove.server.sandboxes.network_grants import write_grants, write_mount_grants
from cove.server.sandboxes.slots import Slot, write_slot
from cove.server.sandboxes.start_protocol import RUNTIME_KILLED
from cove.server.sandboxes.warm_pool import WarmPool
from cove.server.worker import Work, run_worker

_STOP = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_STOP, signal.SIGCHLD, RUNTIME_KILLED)
_READY_SECONDS = 60.0
_STOP_SECONDS = 15.0
_HEALTHY_SECONDS = 10.0
_LONGEST_DELAY = 10.0
_BACKLOG = 4096
# After a process was killed, what it has left is swept; so soon, for all that are killed at once.
_SOON = 0.5


@dataclass(slots=True)
class _Child:
    """A process that is always there: started again when it ends, later and later if it ends early."""

    name: str
    start: Callable[[], int]
    pid: int = 0
    started: float = 0.0
    failures: int = 0
    due: float = 0.0

    def start_if_due(self) -> None:
        """Start it, unless it runs or has to wait."""
        if not self.pid and self.due <= time.monotonic():
            self.pid, self.started = self.start(), time.monotonic()

    def ended(self) -> None:
        """Note that it was reaped."""
        now = time.monotonic()
        self.failures = self.failures + 1 if now - self.started < _HEALTHY_SECONDS else 0
        self.due = now + min(0.1 * 2**self.failures, _LONGEST_DELAY) if self.failures > 1 else now
        self.pid = 0


class Supervisor:
    """Runs a server on one state directory until it is told to stop."""

    def __init__(self, home: Path, configuration: Configuration, announce: Callable[[str], None]) -> None:
        self._home = home
        self._configuration = configuration
        self._announce = announce
        self._directory = Directory(home)
        self._pool = WarmPool(self._directory)
        self._pid = os.getpid()
        self._children: list[_Child] = []
        self._companions: list[_Child] = []
        self._cluster = _companions_of(home, configuration)
        self._listeners: list[socket.socket] = []
        self._has_left = False
        self._sweeper = 0
        self._next_sweep = 0.0
        self._starting = (-1, -1)

    def run(self) -> None:
        """Serve. Blocks until a signal says to stop and everything that ends with the server has ended."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        os.environ["COVE_HOME"] = str(self._home)
        forget_ray_token()
        Home(self._home).open()
        self._directory.open()
        self._pool.open()
        with self._only_server():
            write_grants(self._home, self._configuration.grants)
            write_mount_grants(self._home, self._configuration.mount_grants)
            write_capacity(self._home, self._configuration.max_sandboxes)
            cpus, memory = self._configuration.slot
            write_slot(self._home, Slot(cpus=cpus, memory=memory))
            clear_counts(self._home)
            self._write_members()
            self._starting = os.pipe2(os.O_CLOEXEC)
            zygote = _Child("zygote", self._start_zygote)
            self._children.append(zygote)
            try:
                zygote.start_if_due()
                self._pool.drain()
                self._start_workers()
                self._supervise()
            finally:
                self._stop()

    def _write_members(self) -> None:
        """Say who is in the cluster; where an engine does, it has said so, or will."""
        cluster = self._configuration.cluster
        if cluster is None:
            write_members(self._home, None)
            return
        load_peer_key(cluster.peer_key_file)
        if cluster.members:
            write_members(self._home, cluster.listed(cove.__version__))

    def _only_server(self) -> FileIO:
        path = self._directory.server / LOCK_FILE
        path.touch(mode=0o600)
        lock = try_lock(path)
        if lock is None:
            raise SandboxUnavailable(f"another server uses {self._home}: stop it, or choose another --home")
        close_in_forked_child(lock)
        return lock

    # Processes

    def _start_zygote(self) -> int:
        """Start it and wait until it takes requests, or has ended."""
        read, write = os.pipe2(os.O_CLOEXEC)
        starting = self._starting[1]
        arguments = self._pid, write, starting, self._configuration.log_format
        with subprocess.Popen(
            [sys.executable, "-m", "cove.server.runtime.zygote", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            pass_fds=[write, starting],
            env=without_secrets(os.environ),
        ) as process:
            os.close(write)
            poll = select.poll()
            poll.register(read, select.POLLIN)
            poll.poll(_READY_SECONDS * 1000)
            os.close(read)
            process.returncode = 0  # from here on the child is waited for here
        return process.pid

    def _start_workers(self) -> None:
        configuration = self._configuration
        given = configuration.api_key or os.environ.pop("COVE_API_KEY", None)
        key = None if configuration.insecure_no_key else load_key(self._home, given)
        leave_key(self._home, key if given else None)  # who can connect finds it
        api = _listen(configuration.host, configuration.port)
        port: int = api.getsockname()[1]
        previews = _listen(configuration.host, configuration.chosen_preview_port)
        self._listeners += (api, previews)
        if self._cluster is not None:
            self._prepare_cluster(self._cluster, port)
        write_address(self._directory.server, address_of(configuration, previews.getsockname()[1]))
        ready = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        work = Work(self._home, configuration, key, api, previews, ready, Activity())
        self._children += [
            _Child("worker", partial(self._fork, "cove-worker", partial(run_worker, work, number)))
            for number in range(configuration.workers)
        ]
        for child in self._children:
            child.start_if_due()
        _wait_until_ready(work.ready, [child.pid for child in self._children[1:]])
        where = "The key is the one it was given." if given else f"The key is in {self._home / KEY_FILE}."
        if key is None:
            where = "Everybody on this machine can use it: there is no key."
        host = f"[{configuration.host}]" if ":" in configuration.host else configuration.host
        replace_file(self._directory.server / URL_FILE, f"http://{_host_here(host)}:{port}\n".encode())
        self._announce(f"Cove serves http://{host}:{port}, previews on port {previews.getsockname()[1]}. {where}")

    def _prepare_cluster(self, cluster: Companions, port: int) -> None:
        """Ray and the agent are started beside the workers, and none waits for another."""
        cluster.prepare(port)
        if cluster.has_ray:
            self._companions.append(_Child("Ray", cluster.start_ray))
        self._companions.append(_Child("agent", lambda: cluster.start_agent(port)))

    def _fork(self, name: str, work: Callable[[], None]) -> int:
        """A copy of this process that does the work and ends with this process."""
        return os.fork() or self._work(name, work)

    def _work(self, name: str, work: Callable[[], None]) -> NoReturn:
        def work_as_child() -> None:
            end_with_parent(self._pid)
            name_process(name)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            work()

        work_and_exit(work_as_child)

    # Waiting

    def _supervise(self) -> None:
        while not self._has_left:
            for child in self._always:
                child.start_if_due()
            self._sweep_if_due()
            received = signal.sigtimedwait(_SIGNALS, self._seconds_to_wait())
            if received is not None and received.si_signo in _STOP:
                return
            if received is not None and received.si_signo == RUNTIME_KILLED:
                self._sweep_soon()
            self._reap()

    @property
    def _always(self) -> list[_Child]:
        return [*self._children, *self._companions]

    def _seconds_to_wait(self) -> float:
        """Return when something is due; the end of a sweep is a signal, and the next one begins after it."""
        waiting = [child.due for child in self._always if not child.pid]
        sweep = math.inf if self._sweeper else self._next_sweep
        return min(max(min([sweep, *waiting]) - time.monotonic(), 0.0), MOST_SECONDS)

    def _sweep_soon(self) -> None:
        self._next_sweep = min(self._next_sweep, time.monotonic() + _SOON)

    def _sweep_if_due(self) -> None:
        if self._next_sweep <= time.monotonic() and not self._sweeper:
            self._next_sweep = time.monotonic() + seconds_to_next(self._directory)
            self._sweeper = self._fork("cove-sweep", self._sweep)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _sweep(self) -> None:
        self._close_listeners()
        self._keep_warm()
        collect_garbage(self._home)
        forget_journals(self._home, self._configuration.journal_keep)

    def _keep_warm(self) -> None:
        """Let as many sandboxes wait as the configuration says; of an image that is not there, none."""
        kinds: set[str] = set()
        for spec, most in self._configuration.warm_specs:
            with suppress(ImageNotFound):
                kinds.add(self._pool.kind_of(spec))
                for _ in range(most - self._pool.count(spec)):
                    self._pool.replenish(spec, most)
        self._pool.keep_only(kinds)

    def _reap(self) -> None:
        for child in self._children:
            if child.pid and (end := _reap(child.pid)) is not None:
                self._tell(Death(child.name, child.pid, end, "another one is started"))
                child.ended()
                self._sweep_soon()
        for child in self._companions:
            if child.pid and (end := _reap(child.pid)) is not None:
                self._companion_ended(child, end)
        if self._sweeper and _reap(self._sweeper) is not None:
            self._sweeper = 0

    def _companion_ended(self, child: _Child, end: int) -> None:
        """Start it again, unless this node has left the cluster: then its server stops too."""
        self._has_left = child.name == "agent" and end == LEFT
        what = "This node has left the cluster" if self._has_left else "another one is started"
        self._tell(Death(f"{child.name} of the cluster", child.pid, end, what))
        child.ended()

    def _tell(self, death: Death) -> None:
        announce_death(self._home, self._configuration.log_format, death)

    def _end_companions(self) -> None:
        ending, self._companions = self._companions, []
        for child in reversed(ending):
            self._end([child.pid] if child.pid else [])
        if self._cluster is not None:
            self._cluster.end_left_overs()

    # The end

    def _stop(self) -> None:
        """First those who take requests, then the one who starts sandboxes, then the sandboxes if that is wanted.

        A listening socket is closed when nobody has it any more. The workers accept what is in its queue and close
        theirs; here it would take connections that nobody accepts.
        """
        for listener in self._listeners:
            drop_new_connections(listener)
        self._close_listeners()
        zygote, *workers = self._children
        self._end([worker.pid for worker in workers if worker.pid])
        self._end_companions()
        self._pool.close()
        self._end([pid for pid in (zygote.pid, self._sweeper) if pid])
        self._wait_for_starting()
        self._directory.forget_zygote()
        leave_key(self._home, None)
        (self._directory.server / URL_FILE).unlink(missing_ok=True)
        if self._configuration.on_stop is OnStop.DESTROY:
            hierarchies = find_hierarchies()
            for record in self._directory.list():
                destroy(self._directory.of(record.tenant), hierarchies, record.id)
            remove_empty_shares(hierarchies)

    def _wait_for_starting(self) -> None:
        """Wait until no process is about to be a runtime: each serves its sandbox, or has undone it and is gone.

        The zygote and those processes hold the writing end of a pipe, whose end is seen when the last has closed it.
        """
        read, write = self._starting
        os.close(write)
        poll = select.poll()
        poll.register(read, select.POLLIN)
        poll.poll(_STOP_SECONDS * 1000)
        os.close(read)

    def _end(self, pids: list[int]) -> None:
        """TERM, then KILL for those that are not gone in time."""
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        while (pids := [pid for pid in pids if _reap(pid) is None]) and time.monotonic() < until:
            signal.sigtimedwait([signal.SIGCHLD], until - time.monotonic())
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _host_here(host: str) -> str:
    """Return how programs on this machine reach what listens there: also on all addresses."""
    with suppress(ValueError):
        address = ip_address(host.strip("[]"))
        if address.is_unspecified:
            return "127.0.0.1" if address.version == 4 else "[::1]"
    return host


def _companions_of(home: Path, configuration: Configuration) -> Companions | None:
    cluster = configuration.cluster
    if cluster is None or cluster.ray is None:
        return None
    read_token(Path(cluster.ray.token_file))
    return Companions(home, cluster, cluster.ray, configuration.max_sandboxes)


def _wait_until_ready(counter: int, workers: list[int]) -> None:
    """Wait until as many have said so as there are; one that ends before is the end of the server."""
    with ExitStack() as stack:
        poll = select.poll()
        poll.register(counter, select.POLLIN)
        for pid in workers:
            pidfd = os.pidfd_open(pid)
            stack.callback(os.close, pidfd)
            poll.register(pidfd, select.POLLIN)
        waiting = len(workers)
        while waiting:
            found = dict(poll.poll(_READY_SECONDS * 1000))
            if list(found) != [counter]:
                raise SandboxUnavailable("a worker ended, or did not begin to serve: the server cannot start")
            waiting -= os.eventfd_read(counter)


def _reap(pid: int) -> int | None:
    """Collect a child that has ended, and return its exit code, negative for a signal; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found == pid else None


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # Python adds the address
        advice = ": stop what listens there, or choose another port" if error.errno == errno.EADDRINUSE else ""
        raise SandboxUnavailable(f"cannot listen on {host}:{port}: {reason}{advice}") from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
