"""Attempts by system calls that nobody inside needs, by number, with arguments that cannot succeed."""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import socket
from collections.abc import Callable

from cove.verify.inside.harness import Blocked, Facts, Try, add, probe

AREA = "system calls"
BAD = 0xFFFFFFFF  # as a descriptor -1, as a process nobody, as a flag too many
POINTER = 1  # as an address never readable

# For each call: its number on x86_64, i386 and aarch64, and arguments with which it fails also for root.
CALLS: dict[str, tuple[int | None, int | None, int | None, tuple[int, ...]]] = {
    "io_uring_setup": (425, 425, 425, (0, POINTER)),
    "io_uring_enter": (426, 426, 426, (BAD, 0, 0, 0, 0, 0)),
    "io_uring_register": (427, 427, 427, (BAD, 0, 0, 0)),
    "io_setup": (206, 245, 0, (BAD, POINTER)),
    "bpf": (321, 357, 280, (9999, POINTER, 0)),
    "perf_event_open": (298, 336, 241, (POINTER, 0, BAD, BAD, 0)),
    "userfaultfd": (323, 374, 282, (0xFFFF,)),
    "add_key": (248, 286, 217, (POINTER, POINTER, 0, 0, 0)),
    "request_key": (249, 287, 218, (POINTER, POINTER, 0, 0)),
    "keyctl": (250, 288, 219, (9999,)),
    "ptrace": (101, 26, 117, (7, 0x3FFFFFFF, 0, 0)),
    "process_vm_readv": (310, 347, 270, (0x3FFFFFFF, 0, 0, 0, 0, 0)),
    "process_vm_writev": (311, 348, 271, (0x3FFFFFFF, 0, 0, 0, 0, 0)),
    "kcmp": (312, 349, 272, (0x3FFFFFFF, 0x3FFFFFFF, 0, 0, 0)),
    "pidfd_getfd": (438, 438, 438, (BAD, 0, 0)),
    "process_madvise": (440, 440, 440, (BAD, 0, 0, 0, 0)),
    "open_by_handle_at": (304, 342, 265, (BAD, POINTER, 0)),
    "fanotify_init": (300, 338, 262, (BAD, 0)),
    "setns": (308, 346, 268, (BAD, 0)),
    "mount": (165, 21, 40, (POINTER, POINTER, POINTER, 0, 0)),
    "umount2": (166, 52, 39, (POINTER, 0)),
    "pivot_root": (155, 217, 41, (POINTER, POINTER)),
    "chroot": (161, 61, 51, (POINTER,)),
    "open_tree": (428, 428, 428, (BAD, POINTER, 0)),
    "move_mount": (429, 429, 429, (BAD, POINTER, BAD, POINTER, 0)),
    "fsopen": (430, 430, 430, (POINTER, 0)),
    "fsconfig": (431, 431, 431, (BAD, 0, 0, 0, 0)),
    "fsmount": (432, 432, 432, (BAD, 0, 0)),
    "fspick": (433, 433, 433, (BAD, POINTER, 0)),
    "mount_setattr": (442, 442, 442, (BAD, POINTER, 0, POINTER, 0)),
    "statmount": (457, 457, 457, (POINTER, 0, 0, 0)),
    "listmount": (458, 458, 458, (POINTER, 0, 0, 0)),
    "init_module": (175, 128, 105, (POINTER, 0, POINTER)),
    "finit_module": (313, 350, 273, (BAD, POINTER, 0)),
    "delete_module": (176, 129, 106, (POINTER, 0)),
    "kexec_load": (246, 283, 104, (0, 0xFFFF, 0, 0)),
    "kexec_file_load": (320, None, 294, (BAD, BAD, 0, 0, 0)),
    "reboot": (169, 88, 142, (0, 0, 0, 0)),
    "swapon": (167, 87, 224, (POINTER, 0)),
    "swapoff": (168, 115, 225, (POINTER,)),
    "acct": (163, 51, 89, (POINTER,)),
    "quotactl_fd": (443, 443, 443, (BAD, 0x80000700, 0, 0)),
    "syslog": (103, 103, 116, (10, 0, 0)),
    "iopl": (172, 110, None, (0,)),
    "ioperm": (173, 101, None, (0xFFFFFF, 1, 0)),
    "modify_ldt": (154, 123, None, (1, POINTER, 16)),
    "sethostname": (170, 74, 161, (POINTER, 5)),
    "setdomainname": (171, 121, 162, (POINTER, 5)),
    "settimeofday": (164, 79, 170, (POINTER, 0)),
    "clock_settime": (227, 264, 112, (9999, POINTER)),
    "adjtimex": (159, 124, 171, (POINTER,)),
    "clock_adjtime": (305, 343, 266, (9999, POINTER)),
    "clone3": (435, 435, 435, (POINTER, 0)),
}
# By `int 0x80` a 64-bit program makes calls of another ABI, which a careless filter does not know.
ALSO_AS_I386 = (
    "ptrace",
    "keyctl",
    "process_vm_readv",
    "mount",
    "bpf",
    "io_uring_setup",
    "setns",
    "syslog",
    "clone3",
    "io_setup",
)
X32_BIT = 0x40000000
ALSO_AS_X32 = ("keyctl", "mount", "io_uring_setup", "io_setup")

NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "network": 0x40000000,
    "process": 0x20000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
    "time": 0x00000080,
}
UNSHARE = {"x86_64": 272, "aarch64": 97}
CLONE = {"x86_64": 56, "aarch64": 220}
PERSONALITY = {"x86_64": 135, "aarch64": 92}
WITHOUT_RANDOM_ADDRESSES = 0x40000
CLONE_FS = 0x200
SOCKET_FAMILIES = {"vsock": 40, "alg": 38, "packet": 17}
SOCKET_PROTOCOLS = {
    "mptcp": (socket.AF_INET, socket.SOCK_STREAM, 262),
    "sctp": (socket.AF_INET, socket.SOCK_STREAM, 132),
    "netlink_sock_diag": (16, socket.SOCK_RAW, 4),
    "netlink_generic": (16, socket.SOCK_RAW, 16),
    "netlink_uevent": (16, socket.SOCK_RAW, 15),
    "netlink_audit": (16, socket.SOCK_RAW, 9),
}
TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423

# push rbx; eax, ebx, ecx, edx = the arguments; esi = edi = 0; int 0x80; pop rbx; sign-extend; ret
_INTERRUPT = bytes.fromhex("5389f889f34189c889d14489c231f631ffcd805b4898c3")
_library = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int) -> int:
    """Make a system call; the result is negative and an errno when it failed."""
    ctypes.set_errno(0)
    words = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    result = int(_library.syscall(ctypes.c_long(number), *words))
    return -ctypes.get_errno() if result == -1 else result


def call_as_i386(number: int, *arguments: int) -> int:
    """Call by the 32-bit entry."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_INTERRUPT)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    function = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_uint] * 4)(address)
    return int(function(number, *(*arguments, 0, 0, 0)[:3]))


def judge(result: int) -> str:
    """Judge a call: one that is refused says so; any other answer, also about its arguments, came from the call."""
    if -result in (errno.EPERM, errno.ENOSYS):
        raise Blocked(os.strerror(-result))
    return f"the kernel answers: {os.strerror(-result)}" if result < 0 else f"the kernel answers: {result}"


def _enter_calls() -> None:
    machine = platform.machine()
    column = {"x86_64": 0, "aarch64": 2}.get(machine)
    if column is None:
        return
    for name, row in CALLS.items():
        number, arguments = row[column], row[3]
        if isinstance(number, int):
            what = f"the system call {name} can be made"
            add(AREA, f"call_{name}", what, _attempt(call, number, arguments))
        if machine == "x86_64" and name in ALSO_AS_I386 and row[1] is not None:
            what = f"the system call {name} can be made by the 32-bit entry"
            add(AREA, f"call_{name}_as_i386", what, _attempt(call_as_i386, row[1], arguments))
        if machine == "x86_64" and name in ALSO_AS_X32 and row[0] is not None:
            what = f"the system call {name} can be made with an x32 number"
            add(AREA, f"call_{name}_as_x32", what, _attempt(call, row[0] | X32_BIT, arguments))
    for name, flag in NAMESPACES.items():
        add(AREA, f"unshare_{name}", f"a {name} namespace can be made", _attempt(call, UNSHARE[machine], (flag,)))


def _attempt(make: Callable[..., int], number: int, arguments: tuple[int, ...]) -> Try:
    return lambda facts: judge(make(number, *arguments))


_enter_calls()


@probe(AREA, "a process with a user namespace can be cloned")
def clone_with_a_namespace(facts: Facts) -> str:
    return judge(call(CLONE[platform.machine()], NAMESPACES["user"] | CLONE_FS))


@probe(AREA, "a flag in the upper half of an argument hides the lower half")
def unshare_with_garbage_above(facts: Facts) -> str:
    return judge(call(UNSHARE[platform.machine()], NAMESPACES["user"] | 0xDEAD << 32))


@probe(AREA, "addresses can be made predictable")
def turn_off_random_addresses(facts: Facts) -> str:
    return judge(call(PERSONALITY[platform.machine()], WITHOUT_RANDOM_ADDRESSES))


def _socket_attempt(family: int) -> Try:
    def attempt(facts: Facts) -> str:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
            try:
                socket.socket(family, kind, 0).close()
            except OSError as error:
                if error.errno not in (errno.ESOCKTNOSUPPORT, errno.EPROTONOSUPPORT, errno.EINVAL):
                    raise
            else:
                return "a socket was made"
        return "the kernel complains about the type only"

    return attempt


def _protocol_attempt(family: int, kind: int, protocol: int) -> Try:
    def attempt(facts: Facts) -> str:
        socket.socket(family, kind, protocol).close()
        return "a socket was made"

    return attempt


for _name, _arguments in SOCKET_PROTOCOLS.items():
    add(AREA, f"socket_{_name}", f"sockets of the protocol {_name} can be made", _protocol_attempt(*_arguments))

for _name, _family in SOCKET_FAMILIES.items():
    add(AREA, f"socket_{_name}", f"sockets of the family {_name} can be made", _socket_attempt(_family))


@probe(AREA, "input can be pushed into a terminal")
def push_terminal_input(facts: Facts) -> str:
    _, slave = os.openpty()
    os.setsid()
    fcntl.ioctl(slave, 0x540E, 0)
    fcntl.ioctl(slave, TIOCSTI, b"x")
    return "a character was pushed"


@probe(AREA, "the console's selection can be pasted into a terminal")
def use_console_selection(facts: Facts) -> str:
    _, slave = os.openpty()
    try:
        fcntl.ioctl(slave, TIOCLINUX, b"\x06")
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
    return "the terminal takes the request"


@probe(AREA, "the line discipline of a terminal can be changed, which loads modules")
def change_line_discipline(facts: Facts) -> str:
    """Set the line discipline to the one that it has."""
    _, slave = os.openpty()
    fcntl.ioctl(slave, TIOCSETD, bytes(4))
    return "it was set"
