"""Tables of the system calls that the seccomp filter denies, or denies by argument, for each ABI."""

from collections.abc import Mapping
from typing import NamedTuple


class Numbers(NamedTuple):
    """One call's number on x86_64, i386 and aarch64; None where there is none. `x32` where that is not x86_64's."""

    x86_64: int | None
    i386: int | None
    aarch64: int | None
    x32: int | None = None


# The last call that was looked at, in the numbering that all ABIs share since 424: file_setattr(2).
REVIEWED_MAXIMUM = 469

# x86_64 numbers with this bit are those of x32, which has some of its own from 512 on.
X32_BIT = 0x40000000
X32_OWN_FIRST = 512
X32_OWN_LAST = 547

REFUSED: Mapping[str, Numbers] = {
    # Asynchronous calls, which no filter sees.
    "io_uring_setup": Numbers(425, 425, 425),
    "io_uring_enter": Numbers(426, 426, 426),
    "io_uring_register": Numbers(427, 427, 427),
    # Its events are counted for the whole machine: fs.aio-max-nr. Without a context no other call of its family works.
    "io_setup": Numbers(206, 245, 0, x32=543),
    # Programs for the kernel, its counters, and page faults that wait for user code.
    "bpf": Numbers(321, 357, 280),
    "perf_event_open": Numbers(298, 336, 241),
    "userfaultfd": Numbers(323, 374, 282),
    # Keyrings know no namespaces.
    "add_key": Numbers(248, 286, 217),
    "request_key": Numbers(249, 287, 218),
    "keyctl": Numbers(250, 288, 219),
    # The memory and the files of other processes, and files by other ways than their paths.
    "ptrace": Numbers(101, 26, 117, x32=521),
    "process_vm_readv": Numbers(310, 347, 270, x32=539),
    "process_vm_writev": Numbers(311, 348, 271, x32=540),
    "kcmp": Numbers(312, 349, 272),
    "pidfd_getfd": Numbers(438, 438, 438),
    "process_madvise": Numbers(440, 440, 440),
    "open_by_handle_at": Numbers(304, 342, 265),
    "lookup_dcookie": Numbers(212, 253, 18),
    "fanotify_init": Numbers(300, 338, 262),
    # Namespaces and mounts.
    "setns": Numbers(308, 346, 268),
    "mount": Numbers(165, 21, 40),
    "umount": Numbers(None, 22, None),
    "umount2": Numbers(166, 52, 39),
    "pivot_root": Numbers(155, 217, 41),
    "chroot": Numbers(161, 61, 51),
    "open_tree": Numbers(428, 428, 428),
    "move_mount": Numbers(429, 429, 429),
    "fsopen": Numbers(430, 430, 430),
    "fsconfig": Numbers(431, 431, 431),
    "fsmount": Numbers(432, 432, 432),
    "fspick": Numbers(433, 433, 433),
    "mount_setattr": Numbers(442, 442, 442),
    "statmount": Numbers(457, 457, 457),
    "listmount": Numbers(458, 458, 458),
    "open_tree_attr": Numbers(467, 467, 467),
    # Modules and other kernels.
    "create_module": Numbers(174, 127, None),
    "init_module": Numbers(175, 128, 105),
    "finit_module": Numbers(313, 350, 273),
    "delete_module": Numbers(176, 129, 106),
    "query_module": Numbers(178, 167, None),
    "get_kernel_syms": Numbers(177, 130, None),
    "kexec_load": Numbers(246, 283, 104, x32=528),
    "kexec_file_load": Numbers(320, None, 294),
    # The machine as a whole.
    "reboot": Numbers(169, 88, 142),
    "swapon": Numbers(167, 87, 224),
    "swapoff": Numbers(168, 115, 225),
    "acct": Numbers(163, 51, 89),
    "quotactl": Numbers(179, 131, 60),
    "quotactl_fd": Numbers(443, 443, 443),
    "syslog": Numbers(103, 103, 116),
    "iopl": Numbers(172, 110, None),
    "ioperm": Numbers(173, 101, None),
    "vhangup": Numbers(153, 111, 58),
    "nfsservctl": Numbers(180, 169, 42),
    "uselib": Numbers(134, 86, None),
    "_sysctl": Numbers(156, 149, None),
    "vm86": Numbers(None, 166, None),
    "vm86old": Numbers(None, 113, None),
    "modify_ldt": Numbers(154, 123, None),
    "sethostname": Numbers(170, 74, 161),
    "setdomainname": Numbers(171, 121, 162),
    # The clock.
    "stime": Numbers(None, 25, None),
    "settimeofday": Numbers(164, 79, 170),
    "clock_settime": Numbers(227, 264, 112),
    "clock_settime64": Numbers(None, 404, None),
    "adjtimex": Numbers(159, 124, 171),
    "clock_adjtime": Numbers(305, 343, 266),
    "clock_adjtime64": Numbers(None, 405, None),
}

# Their arguments lie in memory, where a filter cannot read them: programs fall back to `clone` and `socket`.
UNREADABLE: Mapping[str, Numbers] = {
    "clone3": Numbers(435, 435, 435),
    "socketcall": Numbers(None, 102, None),
}

# The first argument is a process, 0 for the caller. Not sched_setaffinity(2): libraries name their threads with it.
OF_A_PROCESS: Mapping[str, Numbers] = {
    "sched_setparam": Numbers(142, 154, 118),
    "sched_setscheduler": Numbers(144, 156, 119),
    "sched_setattr": Numbers(314, 351, 274),
    "migrate_pages": Numbers(256, 294, 238),
    "move_pages": Numbers(279, 317, 239, x32=533),
}

# What root does with owners and identities. Where no other user can be mapped these have no effect, and no failure.
PRETENDED_FOR_ROOT: Mapping[str, Numbers] = {
    "chown": Numbers(92, 212, None),
    "chown16": Numbers(None, 182, None),
    "fchown": Numbers(93, 207, 55),
    "fchown16": Numbers(None, 95, None),
    "lchown": Numbers(94, 198, None),
    "lchown16": Numbers(None, 16, None),
    "fchownat": Numbers(260, 298, 54),
    "setgroups": Numbers(116, 206, 159),
    "setgroups16": Numbers(None, 81, None),
    "setuid": Numbers(105, 213, 146),
    "setuid16": Numbers(None, 23, None),
    "setgid": Numbers(106, 214, 144),
    "setgid16": Numbers(None, 46, None),
    "setreuid": Numbers(113, 203, 145),
    "setreuid16": Numbers(None, 70, None),
    "setregid": Numbers(114, 204, 143),
    "setregid16": Numbers(None, 71, None),
    "setresuid": Numbers(117, 208, 147),
    "setresuid16": Numbers(None, 164, None),
    "setresgid": Numbers(119, 210, 149),
    "setresgid16": Numbers(None, 170, None),
    "setfsuid": Numbers(122, 215, 151),
    "setfsuid16": Numbers(None, 138, None),
    "setfsgid": Numbers(123, 216, 152),
    "setfsgid16": Numbers(None, 139, None),
}

SETPRIORITY = Numbers(141, 97, 140)
IOPRIO_SET = Numbers(251, 289, 30)
SETRLIMIT = Numbers(160, 75, 164)
PRLIMIT = Numbers(302, 340, 261)

CLONE = Numbers(56, 120, 220)
UNSHARE = Numbers(272, 310, 97)
PERSONALITY = Numbers(135, 136, 92)
IOCTL = Numbers(16, 54, 29, x32=514)
SOCKET = Numbers(41, 359, 198)
SOCKETPAIR = Numbers(53, 360, 199)
