"""The system call filter of every sandbox, as a BPF program made from tables: seccomp(2).

Everything is allowed but what the tables name: those calls fail with EPERM. Calls that are newer than the
tables, whose arguments cannot be read, or of an ABI that is not known here fail with ENOSYS, as on a kernel
that does not have them. Arguments are compared by their lower half where the kernel reads no more than that.
"""

import errno
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
    PERSONALITY,
    REFUSED,
    REVIEWED_MAXIMUM,
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

# struct seccomp_data
NUMBER = 0
ARCHITECTURE = 4
FIRST_ARGUMENT = 16
ARGUMENT_BYTES = 8

AUDIT_X86_64 = 0xC000003E
AUDIT_I386 = 0x40000003
AUDIT_AARCH64 = 0xC00000B7

# clone(2), unshare(2): every CLONE_NEW…; CLONE_NEWTIME has no place in the flags of clone.
NAMESPACE_FLAGS = 0x7E020000
NEW_TIME_FLAG = 0x00000080

# ioctl_tty(2): putting input into a terminal.
TIOCSTI = 0x5412
TIOCLINUX = 0x541C

# personality(2): Linux, with 32 bits, with the version 2.6, with both, and the question.
HARMLESS_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

# socket(2): unspecified, unix, inet, inet6, netlink. All others are rare, and much of their code is loaded on demand.
SOCKET_FAMILIES = (0, 1, 2, 10, 16)
# DCCP and SCTP: protocols of the inet families that are modules on demand too.
REFUSED_PROTOCOLS = (33, 132)

Table = dict[int, Program]


@cache
def filter_program(machine: str) -> bytes | None:
    """The filter for a machine as uname(2) names it; None for one whose calls nobody has reviewed."""
    match machine:
        case "x86_64":
            return assemble(_x86())
        case "aarch64":
            return assemble(_aarch64())
        case _:
            return None


def _x86() -> Program:
    native, x32, i386 = (_table(abi) for abi in ("x86_64", "x32", "i386"))
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


def _aarch64() -> Program:
    return [
        *load(ARCHITECTURE),
        *if_equal(AUDIT_AARCH64, [*load(NUMBER), *_decide(_table("aarch64"))]),
        *give(UNKNOWN),
    ]


def _table(abi: str) -> Table:
    """What is done with each call that is not simply allowed."""
    table: Table = {}
    for numbers in REFUSED.values():
        _enter(table, abi, numbers, give(REFUSE))
    for numbers in UNREADABLE.values():
        _enter(table, abi, numbers, give(UNKNOWN))
    _enter(table, abi, CLONE, _refuse_bits(NAMESPACE_FLAGS))
    _enter(table, abi, UNSHARE, _refuse_bits(NAMESPACE_FLAGS | NEW_TIME_FLAG))
    _enter(table, abi, IOCTL, _refuse_values(1, (TIOCSTI, TIOCLINUX)))
    _enter(table, abi, PERSONALITY, _allow_values(HARMLESS_PERSONALITIES))
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


def _allow_values(values: tuple[int, ...]) -> Program:
    tests = [instruction for value in values for instruction in if_equal(value, give(ALLOW))]
    return [*_argument(0), *tests, *give(REFUSE)]


def _check_socket() -> Program:
    protocol = _refuse_values(2, REFUSED_PROTOCOLS)
    families = [instruction for family in SOCKET_FAMILIES for instruction in if_equal(family, protocol)]
    return [*_argument(0), *families, *give(REFUSE)]
