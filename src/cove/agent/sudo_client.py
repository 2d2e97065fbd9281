"""`sudo` inside a sandbox: hands its streams, directory and command to the broker, and ends as the command does."""

from __future__ import annotations

import _signal
import _socket
import os
import posix
import sys

if __name__ == "__main__":
    # Inside a sandbox this package is all there is of Cove.
    sys.modules["cove"] = sys.modules["cove.agent"] = package = type(sys)("cove.agent")
    package.__path__ = sys.argv[1:2]

from cove.agent import kernel, protocol, sudo

PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_BYTES = 1 << 20
FORWARDED = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)
HOW = (
    b"sudo: this sandbox has no sudo: create it with sudo=True on an image, or give user='root' to the call "
    b"(`cove exec --in ID --user root`)\n"
)
USAGE = b"usage: sudo [-E] [-n] [-u USER] [--] [VAR=VALUE ...] COMMAND [ARGUMENT ...]\n"
REFUSED = b"sudo: refused: it is for the user of the sandbox, in a command that is not root's\n"


class Wanted:
    """The options of one call."""

    def __init__(self, words: list[bytes]) -> None:
        self.user = b"root"
        self.variables: dict[bytes, bytes] = {}
        words = list(words)
        while words and words[0][:1] == b"-":
            word = words.pop(0)
            if word == b"--":
                break
            if word in (b"-u", b"--user") and words:
                self.user = words.pop(0)
            elif word not in (b"-E", b"-n", b"-H", b"--preserve-env", b"--non-interactive", b"--set-home"):
                raise ValueError(word)
        while words and b"=" in words[0] and words[0][:1] not in b"/.":
            name, _, value = words.pop(0).partition(b"=")
            self.variables[name] = value
        if not words:
            raise ValueError("no command")
        self.command = words


def read(path: str) -> list[list[bytes]]:
    """Return the lines of a table of users, as fields; nothing where there is none."""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return []
    try:
        return [line.split(b":") for line in posix.read(fd, MOST_BYTES).splitlines()]
    finally:
        posix.close(fd)


def find_user(name: bytes) -> tuple[bytes, bytes, bytes]:
    """Return `uid:gid:…` with further groups, the name and the home of a user; ValueError for one there is not."""
    wanted = name.lstrip(b"#")
    for fields in read("/etc/passwd"):
        if len(fields) == 7 and wanted in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
            groups = [each[2] for each in read("/etc/group") if len(each) == 4 and fields[0] in each[3].split(b",")]
            numbers = [fields[2], fields[3], *[each for each in groups if each.isdigit()][:64]]
            return b":".join(numbers), fields[0], fields[5]
    if wanted in (b"root", b"0"):
        return b"0:0", b"root", b"/root"
    raise ValueError("no such user")


def environment(wanted: Wanted, name: bytes, home: bytes) -> list[bytes]:
    """Return the caller's variables as the other user has them."""
    own = {b"HOME": home, b"USER": name, b"LOGNAME": name, b"SUDO_UID": b"%d" % posix.getuid()}
    environ = {b"PATH": PATH, **os.environb, **own, **wanted.variables}
    return [key + b"=" + value for key, value in environ.items()]


def main() -> int:
    """Run as `sudo`: the first words say where the agent is, and whether there is a broker."""
    words = [os.fsencode(word) for word in sys.argv[2:]]
    state, words = words[0], words[1:]
    if state != b"on" and posix.geteuid():
        posix.write(2, HOW)
        return 1
    try:
        wanted = Wanted(words)
    except ValueError:
        posix.write(2, USAGE)
        return 1
    try:
        user, name, home = find_user(wanted.user)
    except ValueError:
        posix.write(2, b"sudo: unknown user: " + wanted.user + b"\n")
        return 1
    entries = environment(wanted, name, home)
    packet = protocol.encode(user, b"%d" % len(wanted.command), *wanted.command, *entries)
    if not posix.geteuid():
        sudo.execute(*sudo.parse(packet))
    return ask(packet)


def ask(packet: bytes) -> int:
    """Have the broker run it; returns its exit code."""
    broker = connect()
    if broker is None or len(packet) > sudo.LIMIT:
        posix.write(2, REFUSED if broker is None else b"sudo: the command and its variables are too long\n")
        return 1
    for number in FORWARDED:
        _signal.signal(number, lambda sent, _frame: broker.send(b"%d" % sent) and None)
    kernel.send(broker, packet, (0, 1, 2, posix.open(".", posix.O_PATH)))
    said = broker.recv(256).split(b"\0")
    if len(said) != 2 or said[0] != b"exit":
        posix.write(2, REFUSED)
        return 1
    status = int(said[1])
    return 128 + posix.WTERMSIG(status) if posix.WIFSIGNALED(status) else posix.WEXITSTATUS(status)


def connect() -> _socket.socket | None:
    """Connect to the broker of the launcher above, which is a child of PID 1."""
    parents = kernel.parents()
    pid = posix.getpid()
    while parents.get(pid, 1) != 1:
        pid = parents[pid]
    broker = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        broker.connect(b"%s/%d" % (sudo.DIRECTORY, pid))
    except OSError:
        return None
    return broker


if __name__ == "__main__":
    posix._exit(main())
