"""What the filter does to real calls, made by their numbers inside a real sandbox."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from cove import AsyncSandbox
from cove.core.system_calls import REFUSED, REVIEWED_MAXIMUM, X32_BIT
from cove.errors import SandboxUnavailable
from cove.linux import seccomp
from cove.runtime.machine import examine_machine

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="makes calls by the numbers of x86_64 and i386"),
]

# Reads [abi, number, arguments...] from its standard input; prints the errno of each call, 0 when it worked.
CALLER = """
import ctypes, errno, json, mmap, sys
library = ctypes.CDLL(None, use_errno=True)
# push rbx; eax, ebx, ecx, edx = arguments; esi = edi = 0; int 0x80; pop rbx; sign-extend; ret
code = bytes.fromhex("5389f889f34189c889d14489c231f631ffcd805b4898c3")
page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
interrupt = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_uint] * 4)(address)
answers = []
for abi, number, *arguments in json.load(sys.stdin):
    padded = [*arguments, 0, 0, 0, 0, 0, 0]
    if abi == "i386":
        answers.append(max(0, -interrupt(number, *padded[:3])))
    else:
        ctypes.set_errno(0)
        answer = library.syscall(ctypes.c_long(number), *[ctypes.c_ulong(each) for each in padded[:6]])
        answers.append(ctypes.get_errno() if answer == -1 else 0)
print(json.dumps(answers))
"""

EPERM, ENOSYS = 1, 38


async def calls_inside(calls: list[list[object]]) -> list[int]:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(["python3", "-I", "-c", CALLER], stdin=json.dumps(calls), timeout=60)
    return json.loads(result.check().stdout)  # type: ignore[no-any-return]


def calls_outside(calls: list[list[object]]) -> list[int]:
    """The same calls by a plain program, with the kernel's own rules alone."""
    program = [sys.executable, "-I", "-c", CALLER]
    if os.geteuid() == 0:
        program = ["/usr/bin/setpriv", "--reuid=65534", "--clear-groups", "--", "/usr/bin/python3", "-I", "-c", CALLER]
    end = subprocess.run(program, input=json.dumps(calls), capture_output=True, text=True, timeout=60, check=True)
    return json.loads(end.stdout)  # type: ignore[no-any-return]


async def test_every_refused_call_fails_with_eperm_on_every_abi() -> None:
    calls: list[list[object]] = []
    for numbers in REFUSED.values():
        if numbers.x86_64 is not None:
            calls.append(["x86_64", numbers.x86_64])
            calls.append(["x32", (numbers.x32 or numbers.x86_64) | X32_BIT])
        if numbers.i386 is not None:
            calls.append(["i386", numbers.i386])
    answers = await calls_inside(calls)
    assert [call for call, answer in zip(calls, answers, strict=True) if answer != EPERM] == []


async def test_the_same_calls_are_not_refused_by_the_kernel_alone() -> None:
    names = ["io_uring_setup", "userfaultfd", "keyctl", "ptrace", "process_vm_readv", "kcmp", "fsopen"]
    calls: list[list[object]] = [["x86_64", REFUSED[name].x86_64] for name in names]
    calls += [["i386", REFUSED[name].i386] for name in ("ptrace", "process_vm_readv", "keyctl")]
    outside, inside = calls_outside(calls), await calls_inside(calls)
    assert set(inside) == {EPERM}
    assert sum(answer != EPERM for answer in outside) >= len(calls) // 2


async def test_what_is_newer_than_the_review_and_clone3_are_not_there() -> None:
    numbers = (435, REVIEWED_MAXIMUM + 1, 9999)
    calls: list[list[object]] = [[abi, number, 0, 0] for number in numbers for abi in ("x86_64", "i386")]
    calls += [
        ["i386", 102, 1, 0],
        ["x32", X32_BIT | (REVIEWED_MAXIMUM + 1)],
    ]
    assert await calls_inside(calls) == [ENOSYS] * len(calls)


async def test_arguments_are_judged_on_every_abi_and_not_fooled_by_their_upper_half() -> None:
    high = 0xDEADBEEF << 32
    refused: list[list[object]] = [
        ["x86_64", 272, 0x10000000],  # unshare(CLONE_NEWUSER)
        ["x86_64", 272, 0x10000000 | high],
        ["i386", 310, 0x10000000],
        ["x86_64", 56, 0x10000011],  # clone
        ["i386", 120, 0x20000011],
        ["x86_64", 16, 0, 0x5412],  # ioctl(TIOCSTI)
        ["x86_64", 16, 0, 0x5412 | high],
        ["i386", 54, 0, 0x5412],
        ["x86_64", 16, 0, 0x541C],
        ["x86_64", 41, 40, 1, 0],  # socket(AF_VSOCK)
        ["x86_64", 41, 40 | high, 1, 0],
        ["i386", 359, 40, 1, 0],
        ["x86_64", 41, 38, 5, 0],  # AF_ALG
        ["x86_64", 41, 17, 3, 0],  # AF_PACKET
        ["x86_64", 16, 0, 0x5423],  # ioctl(TIOCSETD)
        ["i386", 54, 0, 0x5423 | high],
        ["x86_64", 41, 2, 1, 132],  # SCTP
        ["x86_64", 41, 2, 1, 262 | high],  # MPTCP
        ["i386", 359, 10, 1, 262],
        ["x86_64", 41, 2, 10, 0],  # SOCK_PACKET
        ["x86_64", 41, 16, 3, 4],  # NETLINK_SOCK_DIAG
        ["i386", 359, 16, 3, 15],  # NETLINK_KOBJECT_UEVENT
        ["x86_64", 302, 1, 7, 1],  # prlimit of PID 1
        ["i386", 340, 1, 7, 1],
        ["x86_64", 144, 1, 0, 0],  # sched_setscheduler
        ["i386", 156, 1, 0, 0],
        ["x86_64", 141, 0, 1, 19],  # setpriority of PID 1, of a user
        ["x86_64", 141, 2, 0, 19],
        ["i386", 97, 2, 0, 19],
        ["x86_64", 251, 1, 1, 0x6000],  # ioprio_set
        ["x86_64", 256, 1, 0, 0],  # migrate_pages
        ["x86_64", 279, 1, 0, 0],  # move_pages
        ["x86_64", 135, 0x40000],  # personality(ADDR_NO_RANDOMIZE)
        ["i386", 136, 0x40000],
    ]
    allowed: list[list[object]] = [
        ["x86_64", 272, 0],
        ["x86_64", 135, 0xFFFFFFFF],
        ["x86_64", 41, 2, 1, 0],
        ["x86_64", 41, 16, 3, 0],
        ["x86_64", 41, 2, 2, 17],
        ["i386", 359, 1, 1, 0],
        ["x86_64", 302, 1, 7, 0, 0],
        ["x86_64", 141, 0, 0, 19],
        ["x86_64", 251, 1, 0, 0x6000],
    ]
    answers = await calls_inside(refused + allowed)
    assert answers == [EPERM] * len(refused) + [0] * len(allowed)


CORES = """
import ctypes, os, resource
library = ctypes.CDLL(None)
def limits(): return [line.split()[4:6] for line in open("/proc/self/limits") if line.startswith("Max core")][0]
print(limits())
for wanted in ((0, 0), (0, 1), (1, 1)):
    resource.setrlimit(resource.RLIMIT_CORE, wanted)
    resource.prlimit(0, resource.RLIMIT_CORE, wanted)
    print(limits())
pid = os.fork()
if not pid: os.abort()
print(os.WCOREDUMP(os.waitpid(pid, 0)[1]))
"""


async def test_nothing_inside_leaves_a_core_file_or_reaches_a_handler_for_them() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        for surface in (sandbox, session):
            result = await surface.exec(["python3", "-c", CORES] if surface is sandbox else f"python3 -c '{CORES}'")
            assert result.check().stdout == "['1', '1']\n" * 4 + "False\n"
        assert (await sandbox.exec("ulimit -c; ulimit -Hc; ulimit -c 0")).stdout == "0\n0\n"


async def test_the_filter_binds_the_agent_and_all_it_starts() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        for result in (
            await sandbox.exec("cat /proc/1/status /proc/self/status"),
            await session.exec("cat /proc/1/status /proc/$$/status /proc/self/status"),
        ):
            modes = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("Seccomp:")]
            assert set(modes) == {"2"}


async def test_without_isolation_there_is_no_filter() -> None:
    async with AsyncSandbox.create(isolation="none") as sandbox:
        result = await sandbox.exec("grep Seccomp: /proc/self/status")
    host = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Seccomp:"))
    assert result.stdout.strip() == host


def test_a_kernel_without_filters_gives_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "has_filters", lambda: False)
    with pytest.raises(SandboxUnavailable, match=r"no seccomp filter.*CONFIG_SECCOMP_FILTER.*isolation='none'"):
        examine_machine().require_filter()


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("unshare --user true", "not permitted"),
        ("strace -V >/dev/null && strace true", "not permitted|PTRACE"),
        ("setarch -R true", "not permitted"),
    ],
)
async def test_a_tool_that_needs_a_refused_call_says_so(command: str, complaint: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        if (await sandbox.exec(["which", command.split()[0]])).exit_code:
            pytest.skip(f"needs {command.split()[0]} on this machine")
        result = await sandbox.exec(command)
    assert result.exit_code != 0
    assert any(word.lower() in result.stderr.lower() for word in complaint.split("|")), result.stderr
