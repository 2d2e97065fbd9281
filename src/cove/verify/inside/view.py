"""Attempts to see or change the host's files and devices, and through /proc and /sys."""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from cove.verify.inside.harness import Blocked, Facts, Try, add, probe

FILES = "files"
KERNEL = "/proc and /sys"

SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh/sshd_config", "/etc/fstab", "/etc/crontab")
PEOPLE = ("/root", "/var/log", "/var/lib", "/var/spool", "/boot", "/mnt", "/media", "/srv")
SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private")
SYSTEM = ("/usr", "/usr/bin", "/usr/lib", "/etc", "/dev")
DEVICES = ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/loop-control", "/dev/net/tun", "/dev/port")
# Opened for writing and not written to.
SWITCHES = (
    *("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches"),
    *(
        "/proc/sys/kernel/sysrq",
        "/proc/sys/fs/binfmt_misc/register",
        "/sys/kernel/uevent_helper",
        "/proc/sys/vm/panic_on_oom",
    ),
)
TOLD = {
    "cmdline": "the kernel's command line",
    "kallsyms": "the kernel's symbols",
    "config.gz": "the kernel's configuration",
    "interrupts": "the machine's devices",
    "partitions": "the machine's disks",
    "diskstats": "what the machine's disks do",
    "modules": "the loaded modules",
    "locks": "which files of the host are locked",
    "sys/kernel/random/boot_id": "an id of the running machine",
    "cgroups": "how many control groups, and so sandboxes, there are",
    "misc": "the machine's drivers",
    "devices": "the machine's drivers",
    "ioports": "the machine's devices",
    "softirqs": "what the machine's devices do",
    "crypto": "which parts of the kernel are in use",
    "sys/fs/file-nr": "how many files others have open",
    "sys/fs/inode-nr": "how many files others use",
    "sys/kernel/pty/nr": "how many terminals others have",
    "kcore": "the machine's memory",
    "kmsg": "the kernel's messages",
    "slabinfo": "the kernel's memory",
    "timer_list": "the kernel's timers",
    "iomem": "the machine's addresses",
}


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = os.read(descriptor, 4096)
    except BlockingIOError:
        return "it can be opened"
    finally:
        os.close(descriptor)
    if not data:
        raise Blocked("it is empty")
    return f"{len(data)} bytes can be read"


def _list(path: str) -> str:
    names = os.listdir(path)
    if not names:
        raise Blocked("it is empty")
    return f"{len(names)} names can be read"


def _make_file(directory: str) -> str:
    path = os.path.join(directory, f".cove-verify-{os.getpid()}")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)
    return "a file could be made"


def _open_for_writing(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY))
    return "it can be opened for writing"


def _exists(path: str) -> str:
    return f"it is there, mode {os.stat(path).st_mode:o}"


def _name(path: str) -> str:
    return re.sub(r"\W+", "_", path).strip("_").lower()


def _enter(area: str, verb: str, what: str, paths: Iterable[str], act: Callable[[str], str]) -> None:
    """One probe for each path; `what` has its place for the path."""
    for path in paths:
        add(area, f"{verb}_{_name(path)}", what.format(path), _attempt(act, path))


def _attempt(act: Callable[[str], str], path: str) -> Try:
    return lambda facts: act(path)


_enter(FILES, "read", "{} of the host can be read", SECRETS, _read)
_enter(FILES, "list", "{} of the host can be listed", PEOPLE, _list)
_enter(FILES, "see", "the host's socket {} is there", SOCKETS, _exists)
_enter(FILES, "write", "files can be made in {}", SYSTEM, _make_file)
_enter(FILES, "open", "the device {} is there", DEVICES, _exists)
_enter(KERNEL, "switch", "{} can be written", SWITCHES, _open_for_writing)
for _path, _meaning in TOLD.items():
    _enter(KERNEL, "told", f"{{}} tells {_meaning}", [f"/proc/{_path}"], _read)


@probe(KERNEL, "the machine's interrupts are listed")
def list_interrupts(facts: Facts) -> str:
    return _list("/proc/irq")


@probe(FILES, "a file that lies on the host, readable for everybody, can be read")
def read_the_canary(facts: Facts) -> str:
    if facts["secret"] not in Path(facts["canary"]).read_text():
        raise Blocked("it is another file")
    return "the canary was read"


@probe(FILES, "a file of the host is found anywhere below /")
def find_the_canary(facts: Facts) -> str:
    wanted = facts["canary_inode"]
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/usr", "/dev")]
        if folder.count("/") > 3:
            folders.clear()
        for name in files:
            try:
                found = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            if f"{found.st_dev}:{found.st_ino}" == wanted:
                return f"it is at {folder}"
    raise Blocked("it is nowhere")


@probe(FILES, "Cove's own state can be listed")
def list_the_state(facts: Facts) -> str:
    return _list(facts["state"])


@probe(FILES, "the disk that holds the host's files can be opened")
def open_a_disk(facts: Facts) -> str:
    for name in os.listdir("/dev"):
        if stat.S_ISBLK(os.stat(f"/dev/{name}").st_mode):
            return f"/dev/{name} is there"
    raise Blocked("there is no block device")


@probe(FILES, "a device can be made")
def make_a_device(facts: Facts) -> str:
    path = f"/tmp/.cove-verify-device-{os.getpid()}"
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 1))
    os.unlink(path)
    return "a device for the machine's memory was made"


@probe(FILES, "the root of process 1 leads to the host")
def follow_the_root_of_init(facts: Facts) -> str:
    if facts["secret"] not in Path("/proc/1/root" + facts["canary"]).read_text():
        raise Blocked("it is another file")
    return "the canary was read"


@probe(FILES, "a directory above the root can be reached")
def climb_above_the_root(facts: Facts) -> str:
    directory = os.open("/", os.O_RDONLY)
    for _ in range(64):
        directory = os.open("..", os.O_RDONLY, dir_fd=directory)
    inside = os.open(facts["canary"].lstrip("/"), os.O_RDONLY, dir_fd=directory)
    return f"descriptor {inside}"


@probe(KERNEL, "there is a /sys")
def list_sys(facts: Facts) -> str:
    return _list("/sys")


@probe(KERNEL, "control groups can be made")
def make_a_control_group(facts: Facts) -> str:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind = line.split()[:3]
        if kind in ("cgroup", "cgroup2"):
            path = f"{point}/cove-verify-{os.getpid()}"
            os.mkdir(path)
            os.rmdir(path)
            return f"one was made in {point}"
    raise Blocked("none is mounted")


@probe(KERNEL, "the environment of the program outside is found in /proc")
def find_the_environment(facts: Facts) -> str:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if facts["secret"].encode() in Path(f"/proc/{name}/environ").read_bytes():
                return f"in process {name}"
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ESRCH):
                raise
    raise Blocked("it is nowhere")


@probe(KERNEL, "mounts name directories of the host's people")
def find_people_in_mounts(facts: Facts) -> str:
    text = Path("/proc/self/mountinfo").read_text()
    # Directories of an overlay and of /proc are of no disk: nothing of the host is named by them.
    roots = {line.split()[3] for line in text.splitlines() if " - overlay " not in line and " - proc " not in line}
    allowed = (
        "/usr",
        "/etc/",
        "/lib",
        "/bin",
        "/sbin",
        "/null",
        "/zero",
        "/full",
        "/random",
        "/urandom",
        "/tty",
        "/net",
    )
    own = (facts["state_name"], os.path.basename(facts["python"]))
    named = [root for root in roots if root != "/" and not root.startswith(allowed) and not any(n in root for n in own)]
    if not named and not any(" - ext4 " in line and line.split()[3] == "/" for line in text.splitlines()):
        raise Blocked("only the system and Cove's own directories are named")
    return f"it names {named[:3] or 'the whole disk'}"
