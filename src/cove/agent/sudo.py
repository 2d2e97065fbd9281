"""The broker of `sudo`: starts programs as root, or another user, for the processes of one command.

Theory of operation. no_new_privs holds for everything inside, so no set-user-id program gives rights. A launcher has a
unix socket while a command of the user who has sudo runs, and forks the broker when somebody first connects there: most
commands never do. The broker is root inside, has no socket of the runtime's, and ends with the command. `sudo` connects
(agent/sudo_client), and hands over its streams, its directory and what to run. The new process is a child of the
broker, and so below the launcher: it has the command's control group and limits, and ends with its tree.

Who may ask: a process of the one user who has sudo (SO_PEERCRED) that is below the same launcher. What is asked is
bounded: one packet of at most LIMIT bytes, exactly four descriptors, so many requests at a time. A client that goes
takes its program along.
"""

from __future__ import annotations

import _signal
import _socket
import errno
import posix
import select

from cove.agent import kernel, protocol, spawn

DIRECTORY = b"/run/cove-sudo"
PROGRAM = DIRECTORY + b"/bin/sudo"
LIMIT = 65536
DESCRIPTORS = 4
MOST_REQUESTS = 64
MOST_ID = 65534
PEER_BYTES = 12
MOST_ANCESTORS = 10_000
EVERY_DESCRIPTOR = 1 << 20


class Broker:
    """Serves one listening socket. `running` are the programs by their pids, each with the socket of its client."""

    def __init__(self, listener: _socket.socket, wakeup: int, user: int, above: int) -> None:
        self.listener = listener
        self.wakeup = wakeup
        self.user = user
        self.above = above
        self.clients: dict[int, _socket.socket] = {}
        self.running: dict[int, int] = {}
        self.poll = select.poll()
        self.poll.register(listener.fileno(), select.POLLIN)
        self.poll.register(wakeup, select.POLLIN)

    def serve(self) -> None:
        while True:
            for fd, _events in self.poll.poll():
                if fd == self.wakeup:
                    posix.read(self.wakeup, 4096)
                    self.reap()
                elif fd == self.listener.fileno():
                    self.accept()
                elif fd in self.clients:
                    self.hear(fd)

    def accept(self) -> None:
        try:
            fd, _address = self.listener._accept()  # type: ignore[attr-defined]  # what `accept` of socket.py calls
        except OSError:
            return
        client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)
        client.setblocking(False)
        if len(self.clients) >= MOST_REQUESTS or not self.may_ask(client):
            answer(client, b"refused", errno.EPERM)
            client.close()
            return
        self.clients[fd] = client
        self.poll.register(fd, select.POLLIN)

    def may_ask(self, client: _socket.socket) -> bool:
        """Return whether the other end is the one user, below the same launcher."""
        facts = client.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, PEER_BYTES)
        pid, user = int.from_bytes(facts[:4], "little"), int.from_bytes(facts[4:8], "little")
        if user != self.user:
            return False
        parents = kernel.parents()
        for _ in range(MOST_ANCESTORS):
            if pid == self.above:
                return True
            if pid not in parents:
                return False
            pid = parents[pid]
        return False

    def hear(self, fd: int) -> None:
        """Take a request, or later a signal; the end of the client is that of its program."""
        try:
            packet, descriptors = kernel.receive(self.clients[fd], LIMIT + 1, DESCRIPTORS + 1)
        except BlockingIOError:
            return
        except OSError:
            packet, descriptors = b"", []
        started = [pid for pid, client in self.running.items() if client == fd]
        try:
            if not packet:
                kernel.signal_all(started, _signal.SIGTERM)
                self.drop(fd)
            elif started:
                kernel.signal_all(started, signal_number(packet))
            elif len(descriptors) == DESCRIPTORS and len(packet) <= LIMIT:
                self.start(fd, packet, descriptors)
            else:
                self.refuse(fd, errno.EINVAL)
        finally:
            for each in descriptors:
                posix.close(each)

    def start(self, fd: int, packet: bytes, descriptors: list[int]) -> None:
        try:
            user, argv, environ = parse(packet)
            pid = posix.fork()
        except (ValueError, OSError, protocol.ProtocolError):
            self.refuse(fd, errno.EINVAL)
            return
        if not pid:
            run(user, argv, environ, descriptors)
        self.running[pid] = fd

    def reap(self) -> None:
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            fd = self.running.pop(pid, -1)
            if fd in self.clients:
                answer(self.clients[fd], b"exit", status)
                self.drop(fd)

    def refuse(self, fd: int, number: int) -> None:
        answer(self.clients[fd], b"refused", number)
        self.drop(fd)

    def drop(self, fd: int) -> None:
        self.poll.unregister(fd)
        self.clients.pop(fd).close()


def answer(client: _socket.socket, word: bytes, number: int) -> None:
    """Tell a client; one that does not listen is not waited for."""
    try:
        client.send(protocol.encode(word, protocol.encode_number(number)))
    except OSError:
        pass


def signal_number(packet: bytes) -> int:
    """Return the signal that a client hands on; a wrong one is none."""
    return int(packet) if packet.isdigit() and len(packet) <= 2 and 0 < int(packet) < 65 else 0


def parse(packet: bytes) -> tuple[list[int], list[bytes], dict[bytes, bytes]]:
    """Return the user and its groups, the arguments and the environment; ValueError for what is none."""
    who, argc, *rest = packet.split(b"\0")
    user = [protocol.number(each, MOST_ID) for each in who.split(b":")] if who else []
    count = protocol.number(argc, LIMIT)
    argv, entries = rest[:count], rest[count:]
    if len(user) < 2 or not argv or len(argv) < count or not argv[0] or not all(b"=" in each for each in entries):
        raise ValueError("malformed request")
    return user, argv, dict([each.split(b"=", 1) for each in entries])


def run(user: list[int], argv: list[bytes], environ: dict[bytes, bytes], descriptors: list[int]) -> None:
    """Take over the streams and the directory of a client, and execute the program; in a fork of the broker."""
    try:
        posix.setsid()
        posix.fchdir(descriptors[3])
        for target in range(3):
            posix.dup2(descriptors[target], target)
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        execute(user, argv, environ)
    finally:
        posix._exit(126)


def execute(user: list[int], argv: list[bytes], environ: dict[bytes, bytes]) -> None:
    """Become that user for good and execute the program, with its three streams alone. Ends in any case."""
    code = 126
    try:
        posix.closerange(3, EVERY_DESCRIPTOR)
        posix.setgroups(user[1:])
        posix.setresgid(user[1], user[1], user[1])
        posix.setresuid(user[0], user[0], user[0])
        posix.execve(spawn.find_program(argv[0], environ.get(b"PATH", b"")), argv, environ)
    except FileNotFoundError:
        posix.write(2, b"sudo: " + argv[0] + b": command not found\n")
        code = 127
    except OSError as error:
        posix.write(2, b"sudo: %s: %s\n" % (argv[0], posix.strerror(error.errno or 0).encode()))
    finally:
        posix._exit(code)


class Door:
    """The socket of a launcher while a command runs whose user has sudo; its broker is forked when somebody asks.

    Who asks is found by `poll`, the launcher's, as long as there is no broker.
    """

    def __init__(self, user: int, poll: select.poll) -> None:
        self.user = user
        self.poll = poll
        self.broker = 0
        self.path = b"%s/%d" % (DIRECTORY, posix.getpid())
        self.remove()
        self.listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        try:
            self.listener.bind(self.path)
            posix.chmod(self.path, 0o666)  # everybody may connect, and is then judged
            self.listener.listen(16)
        except OSError:
            self.listener.close()
            raise
        self.listener.setblocking(False)
        poll.register(self.listener.fileno(), select.POLLIN)

    def start_broker(self) -> None:
        """Fork the broker, which serves from here on. Where that is refused, so is who asked."""
        above = posix.getpid()
        try:
            self.broker = posix.fork()
        except OSError:
            self.refuse_one()
            return
        if not self.broker:
            try:
                become_broker(self.listener, self.user, above)
            finally:
                posix._exit(0)
        self.poll.unregister(self.listener.fileno())

    def refuse_one(self) -> None:
        try:
            fd, _address = self.listener._accept()  # type: ignore[attr-defined]  # what `accept` of socket.py calls
        except OSError:
            return
        posix.close(fd)

    def lose_broker(self, status: int) -> None:
        """Listen again, if root inside has killed the broker; one that it has stopped is still there."""
        if not posix.WIFSTOPPED(status):
            self.broker = 0
            self.poll.register(self.listener.fileno(), select.POLLIN)

    def close(self) -> None:
        """End the broker; what it has started is the launcher's from here on. Nobody can ask any more."""
        if self.broker:
            posix.kill(self.broker, _signal.SIGKILL)
            posix.waitpid(self.broker, 0)
        else:
            self.poll.unregister(self.listener.fileno())
        self.listener.close()
        self.remove()

    def remove(self) -> None:
        try:
            posix.unlink(self.path)
        except OSError:
            pass  # root inside has removed it


def become_broker(listener: _socket.socket, user: int, above: int) -> None:
    """Leave everything of the launcher behind but the listening socket, and serve."""
    posix.dup2(listener.fileno(), 3, False)
    posix.closerange(4, EVERY_DESCRIPTOR)
    read, write = posix.pipe2(posix.O_NONBLOCK | posix.O_CLOEXEC)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    kernel.guard_process()
    own = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 3)
    own.setblocking(False)
    Broker(own, read, user, above).serve()


def install(words: list[bytes], directory: bytes, *, has_broker: bool) -> None:
    """Make the program `sudo`, which runs the client by our own interpreter; what it says depends on the sandbox."""
    state = b"on" if has_broker else b"off"
    line = b" ".join(
        [quote(word) for word in (*words, b"-I", b"-S", b"-B", directory + b"/sudo_client.pyc", directory)]
    )
    text = b'#!/bin/sh\nexec %s %s "$@"\n' % (line, state)
    for folder in (DIRECTORY, DIRECTORY + b"/bin"):
        try:
            posix.mkdir(folder, 0o755)
        except FileExistsError:
            pass
    fd = posix.open(PROGRAM, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o755)
    try:
        posix.write(fd, text)
        posix.fchmod(fd, 0o755)
    finally:
        posix.close(fd)


def quote(word: bytes) -> bytes:
    """Quote a word for sh."""
    return b"'" + word.replace(b"'", b"'\\''") + b"'"
