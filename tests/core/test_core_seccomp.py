"""The filter is a program: these tests run it for every call of every ABI."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bpf_machine import run_filter

from cove.core.bpf import MOST_INSTRUCTIONS, Span, assemble, give, if_equal, load, search
from cove.core.seccomp import (
    ALLOW,
    AUDIT_AARCH64,
    AUDIT_I386,
    AUDIT_X86_64,
    NAMESPACE_FLAGS,
    NO_PROTOCOL,
    PRETEND,
    REFUSE,
    RLIMIT_CORE,
    TIOCLINUX,
    TIOCSETD,
    TIOCSTI,
    UNKNOWN,
    filter_program,
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
    Numbers,
)

pytestmark = pytest.mark.pure

ABIS = ("x86_64", "x32", "i386", "aarch64")
ARCHITECTURES = {"x86_64": AUDIT_X86_64, "x32": AUDIT_X86_64, "i386": AUDIT_I386, "aarch64": AUDIT_AARCH64}
BY_ARGUMENT = (
    *(CLONE, UNSHARE, PERSONALITY, IOCTL, SOCKET, SOCKETPAIR),
    *(*OF_A_PROCESS.values(), SETPRIORITY, IOPRIO_SET, SETRLIMIT, PRLIMIT),
)
HIGH_GARBAGE = 0xDEADBEEF << 32


def program(abi: str) -> bytes:
    found = filter_program("aarch64" if abi == "aarch64" else "x86_64")
    assert found is not None
    return found


def number_of(numbers: Numbers, abi: str) -> int | None:
    if abi == "x32":
        number = numbers.x32 or numbers.x86_64
        return None if number is None else number | X32_BIT
    return getattr(numbers, abi)  # type: ignore[no-any-return]


def ask(abi: str, numbers: Numbers | int, *arguments: int) -> int | None:
    number = numbers if isinstance(numbers, int) else number_of(numbers, abi)
    return None if number is None else run_filter(program(abi), number, ARCHITECTURES[abi], *arguments)


@pytest.mark.parametrize("abi", ABIS)
def test_every_call_of_the_table_is_refused_and_no_other(abi: str) -> None:
    special = {number_of(numbers, abi) for numbers in (*UNREADABLE.values(), *BY_ARGUMENT)}
    refused = {number_of(numbers, abi) for numbers in REFUSED.values()}
    bit = X32_BIT if abi == "x32" else 0
    unused_on_x32 = {numbers.x86_64 for numbers in REFUSED.values() if numbers.x32 is not None}
    for number in range(bit, bit + REVIEWED_MAXIMUM + 1):
        if number in special or (bit and number - bit in (*unused_on_x32, IOCTL.x86_64, OF_A_PROCESS["move_pages"][0])):
            continue
        assert ask(abi, number) == (REFUSE if number in refused else ALLOW), number


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_fails_with_eperm_whatever_its_arguments(name: str, abi: str) -> None:
    answers = {ask(abi, REFUSED[name], *arguments) for arguments in ((), (1, 2, 3), (HIGH_GARBAGE,) * 6)}
    assert answers <= {REFUSE, None}
    assert REFUSE & 0xFFFF == errno.EPERM


@pytest.mark.parametrize("abi", ABIS)
def test_what_is_newer_than_the_table_or_cannot_be_read_is_not_there(abi: str) -> None:
    bit = X32_BIT if abi == "x32" else 0
    own_of_x32 = range(512, 548) if bit else ()
    for number in (*range(REVIEWED_MAXIMUM + 1, 600), 0x1000, 0x3FFFFFFF):
        assert ask(abi, bit + number) in ((ALLOW, REFUSE) if number in own_of_x32 else (UNKNOWN,)), number
    assert ask(abi, UNREADABLE["clone3"]) == UNKNOWN
    assert ask(abi, UNREADABLE["socketcall"]) in (UNKNOWN, None)
    assert ask(abi, 0xFFFFFFFF) == UNKNOWN
    assert UNKNOWN & 0xFFFF == errno.ENOSYS


@pytest.mark.parametrize("abi", ABIS)
def test_emulated_root_gives_nothing_away_and_is_told_that_it_did(abi: str) -> None:
    emulating = filter_program("aarch64" if abi == "aarch64" else "x86_64", emulates_root=True)
    assert emulating is not None
    pretended = {number_of(numbers, abi) for numbers in PRETENDED_FOR_ROOT.values()} - {None}
    bit = X32_BIT if abi == "x32" else 0
    for number in range(bit, bit + REVIEWED_MAXIMUM + 1):
        plain = ask(abi, number)
        expected = PRETEND if number in pretended else plain
        assert run_filter(emulating, number, ARCHITECTURES[abi]) == expected, number
        assert number not in pretended or plain == ALLOW
    assert PRETEND & 0xFFFF == 0


def test_the_last_ioctl_and_ptrace_of_x32_are_known_by_their_own_numbers() -> None:
    assert ask("x32", X32_BIT | 514, 0, TIOCSTI) == REFUSE
    assert ask("x32", X32_BIT | 521) == REFUSE
    assert ask("x32", X32_BIT | 520) == ALLOW
    assert ask("x86_64", 521) == UNKNOWN


@pytest.mark.parametrize("abi", ABIS)
def test_a_namespace_is_refused_by_each_of_its_flags(abi: str) -> None:
    flags = [1 << bit for bit in range(32) if NAMESPACE_FLAGS & (1 << bit)]
    assert len(flags) == 7
    for flag in flags:
        for garbage in (0, HIGH_GARBAGE, 0x11):
            assert ask(abi, CLONE, flag | garbage) == ask(abi, UNSHARE, flag | garbage) == REFUSE
    thread = 0x3D0F00
    assert ask(abi, CLONE, thread) == ask(abi, CLONE, 17) == ask(abi, CLONE, 0x01200011) == ALLOW
    assert ask(abi, UNSHARE, 0x600) == ALLOW
    assert ask(abi, UNSHARE, 0x80) == REFUSE


@pytest.mark.parametrize("abi", ABIS)
def test_input_is_not_put_into_a_terminal_and_its_line_discipline_stays(abi: str) -> None:
    for request in (TIOCSTI, TIOCLINUX, TIOCSETD):
        assert ask(abi, IOCTL, 0, request) == ask(abi, IOCTL, 0, request | HIGH_GARBAGE) == REFUSE
    for harmless in (0x5401, 0x5413, 0x541B, 0x5411, 0x5424):
        assert ask(abi, IOCTL, TIOCSTI, harmless) == ALLOW


@pytest.mark.parametrize("abi", ABIS)
def test_only_sockets_of_the_everyday_families_are_made(abi: str) -> None:
    allowed = {0, 1, 2, 10, 16}
    for call in (SOCKET, SOCKETPAIR):
        for family in range(64):
            assert ask(abi, call, family, 1, 0) == (ALLOW if family in allowed else REFUSE), family
            assert ask(abi, call, family | HIGH_GARBAGE, 1, 0) == (ALLOW if family in allowed else REFUSE)


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("garbage", [0, HIGH_GARBAGE])
def test_only_sockets_of_the_everyday_protocols_are_made(abi: str, garbage: int) -> None:
    for family in (2, 10):
        for protocol in range(300):
            expected = ALLOW if protocol in (0, 1, 6, 17, 58) else REFUSE
            assert ask(abi, SOCKET, family, 1, protocol | garbage) == expected, protocol
    for protocol in range(40):
        expected = {0: ALLOW, 9: NO_PROTOCOL}.get(protocol, REFUSE)
        assert ask(abi, SOCKET, 16, 3, protocol | garbage) == expected, protocol
    assert ask(abi, SOCKET, 1, 1, 1 | garbage) == ALLOW
    for flags in (0, 0o4000, 0o2000000):
        assert ask(abi, SOCKET, 2, 10 | flags | garbage, 0) == REFUSE
        assert ask(abi, SOCKET, 2, 2 | flags | garbage, 0) == ALLOW


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("garbage", [0, HIGH_GARBAGE])
def test_only_the_callers_own_scheduling_is_changed(abi: str, garbage: int) -> None:
    for numbers in OF_A_PROCESS.values():
        assert ask(abi, numbers, garbage) == ALLOW
        assert ask(abi, numbers, 1 | garbage) == ask(abi, numbers, 0xFFFFFFFF) == REFUSE
    for call, process in ((SETPRIORITY, 0), (IOPRIO_SET, 1)):
        for which in range(4):
            for who in (0, 1, 1000):
                expected = ALLOW if (which, who) == (process, 0) else REFUSE
                assert ask(abi, call, which | garbage, who | garbage, 5) == expected


@pytest.mark.parametrize("abi", ABIS)
def test_limits_are_read_of_anybody_and_set_of_the_caller_alone(abi: str) -> None:
    files, address = 7, 0x7FFF1000
    assert ask(abi, PRLIMIT, 5, files, 0, address) == ask(abi, PRLIMIT, 0, files, 0, address) == ALLOW
    assert ask(abi, PRLIMIT, 0, files, address) == ask(abi, PRLIMIT, HIGH_GARBAGE, files, address) == ALLOW
    assert ask(abi, PRLIMIT, 5, files, address) == ask(abi, PRLIMIT, 5 | HIGH_GARBAGE, files, address) == REFUSE
    assert ask(abi, PRLIMIT, 5, files, 0x7F << 32) == REFUSE
    assert ask(abi, SETRLIMIT, files, address) == ALLOW


@pytest.mark.parametrize("abi", ABIS)
def test_the_limit_on_core_files_stays_and_nobody_fails_for_it(abi: str) -> None:
    for resource in (RLIMIT_CORE, RLIMIT_CORE | HIGH_GARBAGE):
        assert ask(abi, SETRLIMIT, resource, 0x1000) == ask(abi, PRLIMIT, 0, resource, 0x1000) == PRETEND
        assert ask(abi, PRLIMIT, 0, resource, 0x7F << 32) == PRETEND
        assert ask(abi, PRLIMIT, 0, resource, 0, 0x1000) == ALLOW
        assert ask(abi, PRLIMIT, 5, resource, 0x1000) == REFUSE
    assert PRETEND & 0xFFFF == 0


@pytest.mark.parametrize("abi", ABIS)
def test_a_personality_that_weakens_the_process_is_refused(abi: str) -> None:
    for harmless in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF):
        assert ask(abi, PERSONALITY, harmless) == ALLOW
    for value in (0x40000, 0x400000, 0x100000, 1, 0x40008):
        assert ask(abi, PERSONALITY, value) == REFUSE


def test_an_abi_that_is_not_known_has_no_calls() -> None:
    for architecture in (0x40000028, 0x80000016, 0, 0xC00000F3):
        assert run_filter(program("x86_64"), 0, architecture) == UNKNOWN
        assert run_filter(program("aarch64"), 0, architecture) == UNKNOWN
    assert run_filter(program("aarch64"), 0, AUDIT_X86_64) == UNKNOWN


def test_a_machine_that_nobody_reviewed_has_no_filter() -> None:
    assert filter_program("riscv64") is None


@given(st.dictionaries(st.integers(1, 2000), st.integers(0, 3), max_size=700), st.integers(0, 2100))
def test_a_search_finds_the_span_of_every_number(spans: dict[int, int], number: int) -> None:
    starts = sorted({0: 9, **spans}.items())
    built = assemble([*load(0), *search([Span(first, give(answer)) for first, answer in starts])])
    assert run_filter(built, number, 0) == [answer for first, answer in starts if first <= number][-1]


def test_a_test_reaches_over_a_long_program() -> None:
    long = [*(instruction for _ in range(300) for instruction in load(0)), *give(1)]
    built = assemble([*load(0), *if_equal(5, long), *give(2)])
    assert (run_filter(built, 5, 0), run_filter(built, 6, 0)) == (1, 2)


def test_a_program_that_the_kernel_would_not_take_is_not_made() -> None:
    with pytest.raises(ValueError, match="4096"):
        assemble(load(0) * (MOST_INSTRUCTIONS + 1))
