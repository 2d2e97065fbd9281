"""The seccomp filter of every sandbox, as a BPF program made from tables: seccomp(2).

Everything is allowed but what the tables name: those calls fail with EPERM. Calls that are newer than the
tables, whose arguments cannot be read, or of an ABI that is not known here fail with ENOSYS, as on a kernel
that does not have them. Arguments are compared by their lower half where the kernel reads no more than that.
"""

import errno
from collections.abc import Mapping
from functools import cache

from cove.core.bpf import (
    Program,
    Span,
    assemble,
    clear_bits,
    give,
    if_any_bit,
    if_equal,
    load,
    search,
)
from cove.core.system_calls import (
    CLONE,
    IOCTL,
    IOPRIO_SET,
    OF_A_PROCESS,
    PERSONALITY,
    PRETENDED_FOR_ROOT,
    PRLIMIT,
    REFUSED,
    REVIEWED_MAXIMUM,
    SETPRIORITY,
    SETRLIMIT,
    SOCKET,
    SOCKETPAIR,
    UNREADABLE,
    UNSHARE,
    X32_BIT,
    X32_OWN_FIRST,
    X32_OWN_LAST,
    Numbers,
)

ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS
# As on a kernel without it: who reports to the audit system of the kernel does without.
NO_PROTOCOL = 0x00050000 | errno.EPROTONOSUPPORT
# Nothing is done, and the caller is told that it was.
PRETEND = 0x00050000

# struct seccomp_data
NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
ARGUMENT_BYTES = 8
HALF_BYTES = 4

AUDIT_X86_64 = 0xC000003E
AUDIT_I386 = 0x40000003
AUDIT_AARCH64 = 0xC00000B7

# clone(2), unshare(2): every CLONE_NEW…; CLONE_NEWTIME has no place in the flags of clone.
NAMESPACE_FLAGS = 0x7E020000
NEW_TIME_FLAG = 0x00000080

# ioctl_tty(2): putting input into a terminal; line disciplines, which are modules on demand.
TIOCSTI = 0x5412
TIOCLINUX = 0x541C
TIOCSETD = 0x5423

# personality(2): Linux, with 32 bits, with the version 2.6, with both, and the question.
HARMLESS_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

# getrlimit(2). What the sandbox is started with stays: see `core.limits`. Who wants no core files anyway (ssh-agent,
# gpg) must not fail for it.
RLIMIT_CORE = 4

# setpriority(2), ioprio_set(2): `which` for a process.
PRIO_PROCESS = 0
IOPRIO_WHO_PROCESS = 1

# ip(7): unspecified, ICMP, TCP, UDP, ICMPv6. Others are rare, and much of their code is loaded on demand.
IP_PROTOCOLS = (0, 1, 6, 17, 58)
NETLINK_ROUTE = 0
NETLINK_AUDIT = 9
AF_NETLINK = 16
# socket(2): the families that may be used with their protocols, where those are not left to the kernel.
AF_INET = 2
SOCKET_PROTOCOLS: Mapping[int, tuple[int, ...] | None] = {
    0: None,  # unspecified
    1: None,  # unix
    AF_INET: IP_PROTOCOLS,
    10: IP_PROTOCOLS,  # inet6
    AF_NETLINK: (NETLINK_ROUTE,),
}
# packet(7): an old name for the family AF_PACKET; the type shares its argument with flags.
SOCK_PACKET = 10
SOCKET_TYPE_BITS = 0xF

Table = dict[int, Program]


@cache
def filter_program(machine: str, *, emulates_root: bool = False) -> bytes | None:
    """Return the filter for a machine as uname(2) names it; None for one whose calls nobody has reviewed.

    With `emulates_root`, calls that give files or processes to other users do nothing and succeed.
    """
    match machine:
        case "x86_64":
            return assemble(_x86(emulates_root))
        case "aarch64":
            return assemble(_aarch64(emulates_root))
        case _:
            return None


def _x86(emulates_root: bool) -> Program:
    native, x32, i386 = (_table(abi, emulates_root) for abi in ("x86_64", "x32", "i386"))
    sixty_four = [
        *load(NUMBER),
        *if_any_bit(X32_BIT, [*clear_bits(X32_BIT), *_decide(x32, is_x32=True)]),
        *_decide(native),
    ]
    return [
        *load(ARCHITECTURE),
        *if_equal(AUDIT_X86_64, sixty_four),
        *if_equal(AUDIT_I386, [*load(NUMBER), *_decide(i386)]),
        *give(UNKNOWN),
    ]


def _aarch64(emulates_root: bool) -> Program:
    return [
        *load(ARCHITECTURE),
        *if_equal(AUDIT_AARCH64, [*load(NUMBER), *_decide(_table("aarch64", emulates_root))]),
        *give(UNKNOWN),
    ]


def _table(abi: str, emulates_root: bool) -> Table:
    """Return the action for each call that is not simply allowed."""
    table: Table = {}
    for numbers in PRETENDED_FOR_ROOT.values() if emulates_root else ():
        _enter(table, abi, numbers, give(PRETEND))
    for numbers in REFUSED.values():
        _enter(table, abi, numbers, give(REFUSE))
    for numbers in UNREADABLE.values():
        _enter(table, abi, numbers, give(UNKNOWN))
    _enter(table, abi, CLONE, _refuse_bits(NAMESPACE_FLAGS))
    _enter(table, abi, UNSHARE, _refuse_bits(NAMESPACE_FLAGS | NEW_TIME_FLAG))
    _enter(table, abi, IOCTL, _refuse_values(1, (TIOCSTI, TIOCLINUX, TIOCSETD)))
    _enter(table, abi, PERSONALITY, _allow_values(0, HARMLESS_PERSONALITIES))
    for numbers in OF_A_PROCESS.values():
        _enter(table, abi, numbers, _require({0: 0}))
    _enter(table, abi, SETPRIORITY, _require({0: PRIO_PROCESS, 1: 0}))
    _enter(table, abi, IOPRIO_SET, _require({0: IOPRIO_WHO_PROCESS, 1: 0}))
    _enter(table, abi, SETRLIMIT, [*_argument(0), *if_equal(RLIMIT_CORE, give(PRETEND)), *give(ALLOW)])
    _enter(table, abi, PRLIMIT, _check_prlimit())
    for numbers in (SOCKET, SOCKETPAIR):
        _enter(table, abi, numbers, _check_socket())
    return table


def _enter(table: Table, abi: str, numbers: Numbers, then: Program) -> None:
    number: int | None = getattr(numbers, "x86_64" if abi == "x32" else abi)
    if number is not None:
        table[number] = then
    if abi == "x32" and numbers.x32 is not None:
        table[numbers.x32] = then


def _decide(table: Table, *, is_x32: bool = False) -> Program:
    """Search the table; numbers between its entries are allowed up to the last one that was reviewed."""
    starts: Table = {0: give(ALLOW)}
    for number in sorted(table):
        starts[number] = table[number]
        starts.setdefault(number + 1, give(ALLOW))
    ends = {REVIEWED_MAXIMUM + 1: give(UNKNOWN)}
    if is_x32:
        ends |= {X32_OWN_FIRST: starts.get(X32_OWN_FIRST, give(ALLOW)), X32_OWN_LAST + 1: give(UNKNOWN)}
    return search([Span(first, then) for first, then in sorted((starts | ends).items())])


def _argument(position: int) -> Program:
    """Its lower half: both machines are little-endian."""
    return load(FIRST_ARGUMENT + position * ARGUMENT_BYTES)


def _refuse_bits(bits: int) -> Program:
    return [*_argument(0), *if_any_bit(bits, give(REFUSE)), *give(ALLOW)]


def _refuse_values(position: int, values: tuple[int, ...]) -> Program:
    tests = [instruction for value in values for instruction in if_equal(value, give(REFUSE))]
    return [*_argument(position), *tests, *give(ALLOW)]


def _allow_values(position: int, values: tuple[int, ...]) -> Program:
    tests = [instruction for value in values for instruction in if_equal(value, give(ALLOW))]
    return [*_argument(position), *tests, *give(REFUSE)]


def _require(wanted: Mapping[int, int]) -> Program:
    """Allow a call whose arguments at these positions have these values."""
    program = give(ALLOW)
    for position, value in wanted.items():
        program = [*_argument(position), *if_equal(value, program), *give(REFUSE)]
    return program


def _check_prlimit() -> Program:
    """Allow whoever asks without setting anything; set limits of the caller alone, and never that on core files."""
    own = [*_argument(1), *if_equal(RLIMIT_CORE, give(PRETEND)), *give(ALLOW)]
    change = [*_argument(0), *if_equal(0, own), *give(REFUSE)]
    upper = load(FIRST_ARGUMENT + 2 * ARGUMENT_BYTES + HALF_BYTES)
    return [*_argument(2), *if_equal(0, [*upper, *if_equal(0, give(ALLOW)), *change]), *change]


def _check_socket() -> Program:
    families = [
        instruction
        for family, protocols in SOCKET_PROTOCOLS.items()
        for instruction in if_equal(family, _check_protocol(family, protocols))
    ]
    return [*_argument(0), *families, *give(REFUSE)]


def _check_protocol(family: int, protocols: tuple[int, ...] | None) -> Program:
    if protocols is None:
        return give(ALLOW)
    allowed = _allow_values(2, protocols)
    if family == AF_NETLINK:
        return [*_argument(2), *if_equal(NETLINK_AUDIT, give(NO_PROTOCOL)), *allowed]
    if family != AF_INET:
        return allowed
    kind = [*_argument(1), *clear_bits(~SOCKET_TYPE_BITS & 0xFFFFFFFF)]
    return [*kind, *if_equal(SOCK_PACKET, give(REFUSE)), *allowed]
