"""Attempts on processes: to see, signal or trace those of the host, the agent, and others of the sandbox."""

import ctypes
import os
import resource
import signal
from pathlib import Path

from cove.verify.inside.harness import Blocked, Facts, call_library, probe

AREA = "processes"


def _find(needle: str) -> str:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if needle.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                return name
        except OSError:
            continue
    raise Blocked("there is no such process")


@probe(AREA, "a process of the host is seen")
def see_a_process_of_the_host(facts: Facts) -> str:
    return f"as number {_find(facts['process_mark'])}"


@probe(AREA, "a process of the host can be signalled")
def signal_a_process_of_the_host(facts: Facts) -> str:
    number = int(facts["process"])
    os.kill(number, 0)
    if facts["process_mark"].encode() not in Path(f"/proc/{number}/cmdline").read_bytes():
        raise Blocked("that number is another process")
    return "a signal arrives"


@probe(AREA, "a descriptor for a process of the host can be had")
def open_a_process_of_the_host(facts: Facts) -> str:
    descriptor = os.pidfd_open(int(facts["process"]))
    if facts["process_mark"].encode() not in Path(f"/proc/{facts['process']}/cmdline").read_bytes():
        raise Blocked("that number is another process")
    signal.pidfd_send_signal(descriptor, 0)
    return "a signal arrives"


@probe(AREA, "the program outside is the parent of something inside")
def see_the_program_outside(facts: Facts) -> str:
    return f"as number {_find(facts['program_mark'])}"


@probe(AREA, "the memory of another process can be read")
def read_the_memory_of_the_parent(facts: Facts) -> str:
    """Read the memory of this attempt's parent, which is an ordinary process of the same user."""
    remote = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.c_char_p(b"x")), 1)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(1)), 1)
    call_library("process_vm_readv", os.getppid(), local, 1, remote, 1, 0)
    return "a byte was read"


@probe(AREA, "another process of the same user can be traced")
def trace_the_parent(facts: Facts) -> str:
    seize, detach = 0x4206, 17
    call_library("ptrace", seize, os.getppid(), None, None)
    call_library("ptrace", detach, os.getppid(), None, None)
    return "it was traced"


@probe(AREA, "the limits of another process can be set")
def set_the_limits_of_the_parent(facts: Facts) -> str:
    """Set them to what they are."""
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE))
    return "they were set"


@probe(AREA, "the priority of another process can be lowered")
def lower_the_priority_of_the_parent(facts: Facts) -> str:
    os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))
    return "it was set"


@probe(AREA, "the scheduling of another process can be changed")
def schedule_the_parent(facts: Facts) -> str:
    policy = os.sched_getscheduler(os.getppid())
    os.sched_setscheduler(os.getppid(), policy, os.sched_getparam(os.getppid()))
    return "it was set"


@probe(AREA, "priority above others can be taken")
def raise_the_priority(facts: Facts) -> str:
    os.nice(-5)
    return f"niceness {os.nice(0)}"


@probe(AREA, "real-time scheduling can be taken")
def become_real_time(facts: Facts) -> str:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    return "it was given"


@probe(AREA, "the kernel's choice of whom to end can be turned away")
def become_unkillable(facts: Facts) -> str:
    Path("/proc/self/oom_score_adj").write_text("-500")
    return "the score was lowered"
