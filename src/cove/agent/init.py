"""PID 1 of the sandbox: forks launchers, reaps and kills the orphans they leave behind, opens files and ports.

Every process a command starts stays below its launcher. A process that is a child of init and not a
launcher has therefore lost its launcher, and is ended. So is a launcher that was stopped: only code
inside sends SIGSTOP, and nobody would hear from it again. When the runtime's socket closes, init exits
and the kernel ends everything in the namespace: pid_namespaces(7).
"""

from __future__ import annotations

import _signal
import _socket
import errno
import posix
import select
import sys

if __name__ == "__main__":
    # Inside a sandbox this package is all there is of Cove.
    sys.modules["cove"] = sys.modules["cove.agent"] = package = type(sys)("cove.agent")
    package.__path__ = sys.argv[1:2]
    # The jail stands: what is still to be done to it from outside is done while the rest is imported here.
    posix.write(int(sys.argv[2]), b"hello")

from cove.agent import kernel, launcher, protocol

CONTROL = 3
EVERY_DESCRIPTOR = 1 << 20
SWEEP_INTERVAL_MS = 2
# A service that does not accept is given up after 1 + 2 + 4 seconds: tcp(7), TCP_SYNCNT.
SYN_RETRIES = 2


class Init:
    """Serves the control socket; `launchers` are its legitimate children, `ending` the ends in progress."""

    def __init__(
        self,
        sock: _socket.socket,
        wakeup: int,
        namespace: bool,
        launcher_type: type[launcher.Launcher] = launcher.Launcher,
    ) -> None:
        self.launcher_type = launcher_type
        self.sock = sock
        self.wakeup = wakeup
        self.namespace = namespace
        self.launchers: set[int] = set()
        self.ending: dict[int, bytes] = {}
        self.sweeping = False
        self.is_furnished = False
        self.eagerness = kernel.KillEagerness()
        self.connecting: dict[int, tuple[_socket.socket, bytes]] = {}
        self.poll = select.poll()
        self.poll.register(CONTROL, select.POLLIN)
        self.poll.register(wakeup, select.POLLIN)
        self.verbs = {
            b"launcher": self.fork_launcher,
            b"end": self.end,
            b"wake": self.wake,
            b"connect": self.connect,
            b"terminal": self.terminal,
        }

    def serve(self) -> None:
        import resource  # noqa: F401  # for what is forked later: now nobody waits for it

        while True:
            for fd, _events in self.poll.poll(SWEEP_INTERVAL_MS if self.sweeping else None):
                if fd == CONTROL:
                    if not self.receive():
                        return
                elif fd == self.wakeup:
                    posix.read(self.wakeup, 4096)
                    self.reap()
                else:
                    self.finish_connect(fd)
            if self.sweeping:
                self.sweep()

    def send(self, *fields: bytes, descriptors: tuple[int, ...] = ()) -> None:
        try:
            kernel.send(self.sock, protocol.encode(*fields), descriptors)
        except OSError as error:
            if not descriptors or error.errno != errno.ETOOMANYREFS:
                self.leave()
            self.send(b"error", fields[1], protocol.encode_number(errno.ETOOMANYREFS))

    def leave(self) -> None:
        """End everything. Outside a pid namespace nobody does that for us."""
        while not self.namespace:
            below = kernel.descendants(posix.getpid())
            if not below:
                break
            kernel.signal_all(below, _signal.SIGKILL)
            try:
                posix.waitpid(-1, 0)
            except ChildProcessError:
                break
        posix._exit(0)

    def receive(self) -> bool:
        packet, descriptors = kernel.receive(self.sock, protocol.LIMIT, protocol.MAX_DESCRIPTORS)
        if not packet:
            return False
        if packet == protocol.LARGE:
            packet = kernel.read_all(descriptors[-1])
        fields = packet.split(b"\0")
        tag, user = fields[1], b""
        if fields[0] == b"as":
            user, fields = fields[2], [fields[3], tag, *fields[4:]]
        try:
            if user:
                kernel.become_wholly(user)
            try:
                self.obey(tag, fields, descriptors)
            finally:
                if user:
                    kernel.return_wholly()
        except OSError as error:
            self.send(b"error", tag, protocol.encode_number(error.errno or errno.EIO))
        for fd in descriptors:
            posix.close(fd)
        return True

    def obey(self, tag: bytes, fields: list[bytes], descriptors: list[int]) -> None:
        if fields[0] in self.verbs:
            self.verbs[fields[0]](tag, fields[2:], descriptors)
            return
        from cove.agent import files

        self.answer(tag, *files.VERBS[fields[0]](fields[2:]))

    def answer(self, tag: bytes, fields: list[bytes], descriptors: list[int]) -> None:
        self.send(b"ok", tag, *fields, descriptors=tuple(descriptors))
        for fd in descriptors:
            posix.close(fd)

    def fork_launcher(self, tag: bytes, fields: list[bytes], descriptors: list[int]) -> None:
        if not self.is_furnished:
            self.is_furnished = True
            self.furnish()
        self.eagerness.raise_own()
        try:
            pid = posix.fork()
            if not pid:
                become_launcher(descriptors[0], self.launcher_type)
        finally:
            self.eagerness.restore()
        self.launchers.add(pid)
        self.send(b"ok", tag, protocol.encode_number(pid))
        from cove.agent import files  # noqa: F401  # for requests to come: now nobody waits for it

    def furnish(self) -> None:
        """Make what is ours in the sandbox's own system."""
        if self.launcher_type is launcher.Launcher:
            install_sudo()

    def end(self, tag: bytes, fields: list[bytes], descriptors: list[int]) -> None:
        pid = int(fields[0])
        self.ending[pid] = tag
        if pid in self.launchers:
            posix.kill(pid, _signal.SIGKILL)
        self.sweeping = True

    def wake(self, tag: bytes, fields: list[bytes], descriptors: list[int]) -> None:
        """Continue what is stopped below a launcher: it waits while what it starts is stopped before execve(2)."""
        kernel.signal_all(kernel.descendants(int(fields[0])), _signal.SIGCONT)
        self.send(b"ok", tag)

    def reap(self) -> None:
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG | posix.WUNTRACED)
            except ChildProcessError:
                return
            if not pid:
                return
            if posix.WIFSTOPPED(status):
                posix.kill(pid, _signal.SIGKILL)
            elif pid in self.launchers:
                self.launchers.discard(pid)
                self.sweeping = True

    def sweep(self) -> None:
        """Kill the orphans that lost their launcher, in one pass; repeated until none is left."""
        self.reap()
        orphans = kernel.descendants(posix.getpid(), frozenset(self.launchers))
        kernel.signal_all(orphans, _signal.SIGKILL)
        if orphans:
            return
        for pid in [pid for pid in self.ending if pid not in self.launchers]:
            self.send(b"ok", self.ending.pop(pid))
        self.sweeping = bool(self.ending)

    def terminal(self, tag: bytes, fields: list[bytes], descriptors: list[int]) -> None:
        master, slave = posix.openpty()
        try:
            name = posix.ttyname(slave).encode()
            self.send(b"ok", tag, name, descriptors=(master, slave))
        finally:
            posix.close(master)
            posix.close(slave)

    def connect(self, tag: bytes, fields: list[bytes], descriptors: list[int]) -> None:
        host, port = fields
        family = _socket.AF_INET6 if b":" in host else _socket.AF_INET
        sock = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC)
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_SYNCNT, SYN_RETRIES)
        failure = sock.connect_ex((host.decode(), int(port)))
        if failure not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(failure, "connect")
        self.connecting[sock.fileno()] = (sock, tag)
        self.poll.register(sock.fileno(), select.POLLOUT)

    def finish_connect(self, fd: int) -> None:
        sock, tag = self.connecting.pop(fd)
        self.poll.unregister(fd)
        failure = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if failure:
            self.send(b"error", tag, protocol.encode_number(failure))
        else:
            self.send(b"ok", tag, descriptors=(fd,))
        sock.close()


def become_launcher(descriptor: int, launcher_type: type[launcher.Launcher]) -> None:
    """Turn a fresh fork into a launcher that has its own socket and nothing of init's."""
    try:
        posix.dup2(descriptor, CONTROL, False)
        posix.closerange(CONTROL + 1, EVERY_DESCRIPTOR)
        kernel.guard_process()
        import resource

        if launcher_type is launcher.Launcher:
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), int(sys.argv[4])))
            for word in sys.argv[5:]:
                name, _, value = word.partition("=")
                if name.startswith("RLIMIT_"):
                    resource.setrlimit(getattr(resource, name), (int(value), int(value)))
        made = launcher_type(control_socket(), make_wakeup())
        made.sudo_user = sudo_user() if launcher_type is launcher.Launcher else -1
        launcher.run(made)
    finally:
        posix._exit(0)


def sudo_words() -> list[str]:
    """Return what this sandbox was told about `sudo`, if anything: a user, or `off`."""
    return [word.partition("=")[2] for word in sys.argv[5:] if word.startswith("sudo=")]


def sudo_user() -> int:
    """Return who has `sudo`; -1 for nobody."""
    return max([int(word) for word in sudo_words() if word.isdigit()], default=-1)


def install_sudo() -> None:
    """Make the program `sudo`, when the root is the sandbox's own: at the first launcher."""
    if sudo_words():
        from cove.agent import sudo

        words = kernel.read_fact(posix.getpid(), "cmdline").split(b"\0")
        try:
            sudo.install(words[: words.index(b"-I")], sys.argv[1].encode(), has_broker=sudo_user() >= 0)
        except (OSError, ValueError):
            pass  # a system in which it cannot be made does without


def control_socket() -> _socket.socket:
    """Return the one socket that every agent process has."""
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, CONTROL)


def make_wakeup() -> int:
    """Return the read end of a pipe that every caught signal writes to."""
    read, write = posix.pipe2(posix.O_NONBLOCK | posix.O_CLOEXEC)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def main() -> None:
    """Run as init. Only the control socket is ours: every other descriptor is closed before anything runs."""
    for number in _signal.valid_signals():
        if number not in (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD):
            _signal.signal(number, _signal.SIG_DFL)
    kernel.reset_library_signals()
    _signal.signal(_signal.SIGCHLD, launcher.ignore)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    null = posix.open("/dev/null", posix.O_RDWR)
    for fd in (0, 1):
        posix.dup2(null, fd)
    posix.dup2(int(sys.argv[2]), CONTROL, False)
    posix.closerange(CONTROL + 1, EVERY_DESCRIPTOR)
    init = Init(control_socket(), make_wakeup(), namespace=posix.getpid() == 1)
    kernel.guard_process()
    kernel.keep_rights_to_root()
    try:
        init.serve()
    finally:
        init.leave()


if __name__ == "__main__":
    main()
