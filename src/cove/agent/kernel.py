"""System calls that `posix` does not have, packets with descriptors, and facts from /proc."""

from __future__ import annotations

import _ctypes
import _socket
import errno
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_CHILD_SUBREAPER = 36
CAPABILITY_VERSION = 0x20080522
MSG_CMSG_CLOEXEC = 0x40000000
SCM_RIGHTS = 1
DESCRIPTOR_BYTES = 4
MOST_EAGER = b"1000"

# rt_sigaction(2): its number, the size of the kernel's struct (an all-zero one means the default), of a signal set
RT_SIGACTION = {"x86_64": 13, "aarch64": 134}
SIGACTION_BYTES = 64
SIGNAL_SET_BYTES = 8

FACT_BYTES = 8192
LABEL = b"Max file locks"
SIGNAL_SETS = (b"SigIgn", b"SigCgt", b"SigBlk", b"ShdPnd")
NOTHING = b"nothing"
LIVES_ON = b"lives on"
ENDS = b"ends"

_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # the stub leaves out that None is the program itself
_syscall = _ctypes.dlsym(_library, "syscall")
_prctl = _ctypes.dlsym(_library, "prctl")
_capset = _ctypes.dlsym(_library, "capset")
_held = 0


def guard_process() -> None:
    """Make this process unreadable to its neighbours and the parent of every orphan below it."""
    _ctypes.call_function(_prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0))
    _ctypes.call_function(_prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def unguard_process() -> None:
    """Make this process an ordinary one again; its orphans go to its launcher."""
    _ctypes.call_function(_prctl, (PR_SET_DUMPABLE, 1, 0, 0, 0))
    _ctypes.call_function(_prctl, (PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0))


def keep_rights_to_root() -> None:
    """Let no program of another user inherit rights of this one: bubblewrap hands on what it was told to keep.

    Without inheritable capabilities there are no ambient ones: capabilities(7).
    """
    global _held
    _held = int(status_fields(posix.getpid())[b"CapPrm"], 16)
    use_rights()


def use_rights() -> None:
    """Make all that this process may have effective, and nothing inheritable."""
    data = b"".join([(_held >> at & 0xFFFFFFFF).to_bytes(4, "little") * 2 + bytes(4) for at in (0, 32)])
    header = CAPABILITY_VERSION.to_bytes(4, "little") + bytes(4)
    if _held and _ctypes.call_function(_capset, (header, data)):
        raise OSError(errno.EPERM, "capset")


def become(user: bytes) -> None:
    """Take the identity `uid:gid:group,…`, but for the saved one, by which `return_to_root` goes back.

    The program that is started meanwhile has no way back: execve(2) overwrites the saved identity.
    """
    number, group, groups = user.split(b":")
    posix.setgroups([int(each) for each in groups.split(b",") if each])
    posix.setresgid(int(group), int(group), 0)
    posix.setresuid(int(number), int(number), 0)
    # A change of identity makes it what fs.suid_dumpable says: proc(5).
    _ctypes.call_function(_prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0))


def become_wholly(user: bytes) -> None:
    """Take the identity with the saved one too: FUSE serves nobody who has another. No right is effective meanwhile.

    `return_wholly` goes back, by rights that stay permitted: capabilities(7), prctl(2).
    """
    number, group, groups = user.split(b":")
    _ctypes.call_function(_prctl, (PR_SET_KEEPCAPS, 1, 0, 0, 0))
    posix.setgroups([int(each) for each in groups.split(b",") if each])
    posix.setresgid(int(group), int(group), int(group))
    posix.setresuid(int(number), int(number), int(number))
    _ctypes.call_function(_prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0))


def return_wholly() -> None:
    """Take the identity of root again, after `become_wholly`."""
    use_rights()
    return_to_root()


def return_to_root() -> None:
    """Take the identity of root again."""
    posix.setresuid(0, 0, 0)
    posix.setresgid(0, 0, 0)
    posix.setgroups([])
    _ctypes.call_function(_prctl, (PR_SET_DUMPABLE, 0, 0, 0, 0))


def reset_library_signals() -> None:
    """Signals 32 and 33 belong to glibc, which lets nobody set them; a parent may have left them ignored: make does."""
    number = RT_SIGACTION.get(posix.uname().machine)
    if number is not None:
        for each in (32, 33):
            _ctypes.call_function(_syscall, (number, each, b"\0" * SIGACTION_BYTES, 0, SIGNAL_SET_BYTES))


class KillEagerness:
    """The OOM score adjustment of this process: proc(5), oom_score_adj.

    What is forked while it is raised keeps it, so that commands go before init does. It is never less than it was.
    The file is opened while this process is still an ordinary one: later it would not be ours to write.
    """

    def __init__(self) -> None:
        try:
            self.file = posix.open("/proc/self/oom_score_adj", posix.O_RDWR | posix.O_CLOEXEC)
            self.own = posix.pread(self.file, 16, 0).strip()
        except OSError:
            self.file = -1

    def raise_own(self) -> None:
        self.write(MOST_EAGER)

    def restore(self) -> None:
        self.write(self.own if self.file >= 0 else b"")

    def write(self, value: bytes) -> None:
        if self.file >= 0:
            try:
                posix.pwrite(self.file, value, 0)
            except OSError:
                pass  # without it the kernel picks by size alone


def receive(sock: _socket.socket, limit: int, most: int) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors; an empty packet means the other end is closed."""
    packet, ancillary, _flags, _address = sock.recvmsg(
        limit, _socket.CMSG_SPACE(most * DESCRIPTOR_BYTES), MSG_CMSG_CLOEXEC
    )
    descriptors = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == SCM_RIGHTS:
            for at in range(0, len(data), DESCRIPTOR_BYTES):
                descriptors.append(int.from_bytes(data[at : at + DESCRIPTOR_BYTES], "little"))
    return packet, descriptors


def send(sock: _socket.socket, packet: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send one packet with its descriptors."""
    rights = b"".join([fd.to_bytes(DESCRIPTOR_BYTES, "little") for fd in descriptors])
    sock.sendmsg([packet], [(_socket.SOL_SOCKET, SCM_RIGHTS, rights)] if rights else [])


def read_all(fd: int) -> bytes:
    """Read a regular file from its beginning."""
    size = posix.fstat(fd).st_size
    chunks = []
    at = 0
    while at < size:
        chunk = posix.pread(fd, size - at, at)
        if not chunk:
            break
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)


def parents() -> dict[int, int]:
    """Return the parent of every process that /proc shows."""
    found = {}
    for name in posix.listdir("/proc"):
        if name.isdigit():
            facts = stat_fields(int(name))
            if facts:
                found[int(name)] = int(facts[1])
    return found


def lives(pid: int) -> bool:
    """Return whether a process runs. A zombie runs no more."""
    facts = stat_fields(pid)
    return bool(facts) and facts[0] not in (b"Z", b"X")


def lives_since(pid: int, ticks: int) -> bool:
    """Return whether a process started then or later, in clock ticks since boot."""
    facts = stat_fields(pid)
    return bool(facts) and int(facts[19]) >= ticks


def label(pid: int) -> bytes:
    """Return what a shell has written into a limit that means nothing to Linux and that every child inherits.

    setrlimit(2), RLIMIT_LOCKS. Empty where there is none.
    """
    words = read_fact(pid, "limits").partition(LABEL)[2].split()
    return words[0] if words and words[0].isdigit() and words[0] != b"0" else b""


def memory_file(content: bytes) -> int:
    """Return a descriptor of an anonymous file with this content, at its beginning."""
    fd = posix.memfd_create("cove", posix.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[posix.write(fd, view) :]
    posix.lseek(fd, 0, 0)
    return fd


def stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third on: proc(5). Empty when the process is gone."""
    line = read_fact(pid, "stat")
    # The command name, in parentheses, may itself contain anything.
    return line[line.rindex(b")") + 2 :].split() if line else []


def descendants(root: int, without: frozenset[int] | tuple[()] = ()) -> dict[int, int]:
    """Return every process below root with its parent, leaving out the subtrees of `without`."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found = {}
    pending = [root]
    while pending:
        parent = pending.pop()
        for pid in children.get(parent, ()):
            if pid not in without:
                found[pid] = parent
                pending.append(pid)
    return found


def answer(pid: int, number: int) -> bytes:
    """Return what a process does about a signal it was sent: proc(5), status. Gone and stopped ones do nothing."""
    facts = status_fields(pid)
    if not facts or facts[b"State"][:1] in b"ZXTt":
        return NOTHING
    bit = 1 << (number - 1)
    ignored, caught, blocked, pending = [int(facts[name], 16) & bit for name in SIGNAL_SETS]
    if ignored or caught or (blocked and not pending):
        return LIVES_ON
    return ENDS


def status_fields(pid: int) -> dict[bytes, bytes]:
    """Return the lines of /proc/PID/status by name. Empty when the process is gone."""
    lines = read_fact(pid, "status").splitlines()
    return dict([line.split(b":\t", 1) for line in lines if b":\t" in line])


def read_fact(pid: int, name: str) -> bytes:
    """Return the beginning of a file in /proc/PID; empty when the process is gone."""
    try:
        fd = posix.open("/proc/%d/%s" % (pid, name), posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return posix.read(fd, FACT_BYTES)
    except OSError:
        return b""
    finally:
        posix.close(fd)


def feeds(pid: int, reader: int) -> bool:
    """Return whether what one process prints goes through a pipe to another.

    A fork of the reader that runs no program of its own has the pipe already before it prints there, and still the
    reader's arguments.
    """
    try:
        held = pipes(reader)
        if posix.readlink(b"/proc/%d/fd/1" % pid) in held:
            return True
        return bool(held) and read_fact(pid, "cmdline") == read_fact(reader, "cmdline") and bool(held & pipes(pid))
    except OSError:
        return False  # one of them is just going


def pipes(pid: int) -> set[bytes]:
    """Return the pipes that a process has open."""
    folder = b"/proc/%d/fd/" % pid
    found = set()
    for fd in posix.listdir(folder):
        try:
            found.add(posix.readlink(folder + fd))
        except OSError:
            pass  # just closed
    return {name for name in found if name.startswith(b"pipe:")}


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each of these processes; those already gone do not matter."""
    for pid in pids:
        try:
            posix.kill(pid, number)
        except OSError:
            pass
