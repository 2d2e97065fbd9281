"""Build the jail as a list of bubblewrap arguments: a pure function of the spec and of what the host has."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cove.core.users import ROOT_CAPABILITIES
from cove.errors import ValidationFailed
from cove.model import Mount, Network, SandboxSpec

USER = "user"
USER_ID = 1000
HOME = "/home/user"
WORKSPACE = "/workspace"
HOSTNAME = "cove"
NAME_SERVER = "127.0.0.53"
AGENT_DIRECTORY = "/run/cove/agent"
EXECUTOR_DIRECTORY = "/run/cove/executor"
PYTHON_DIRECTORY = "/opt/cove/python"
# The same where the system is an image's, which has an /opt of its own.
IMAGE_PYTHON_DIRECTORY = "/run/cove/packages"
SHELL_DIRECTORY = "/run/cove/shell"
INTERPRETER_DIRECTORY = "/run/cove/python"
STAGING_DIRECTORY = "/run/cove/mounts"
# The host's /usr beside the system of an image: what Cove itself runs inside comes from there.
HOST_DIRECTORY = "/run/cove/host"

ROOT_BYTES = 64 << 20
RUN_BYTES = 4 << 20
SHARED_MEMORY_BYTES = 256 << 20

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BUILT_IN_ENV: Mapping[str, str] = {
    "HOME": HOME,
    "USER": USER,
    "LOGNAME": USER,
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "PATH": f"{HOME}/.local/bin:{PYTHON_DIRECTORY}/bin:{SYSTEM_PATH}",
    "TERM": "dumb",
    "TMPDIR": "/tmp",
    # `pip install` and `npm install --global` go below HOME, the only place where this user can write.
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "NPM_CONFIG_PREFIX": f"{HOME}/.local",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
}


SUDO_DIRECTORY = "/run/cove-sudo/bin"


def image_environment(user: str, home: str) -> dict[str, str]:
    """Return the environment of a user of an image, below what the image itself says."""
    kept = {name: BUILT_IN_ENV[name] for name in ("SHELL", "LANG", "TERM", "TMPDIR")}
    return {**kept, "HOME": home, "USER": user, "LOGNAME": user, "PATH": SYSTEM_PATH}


# Files of /proc that tell everybody about the host as a whole; daily tools do without. Each mask is a mount: it costs a
# start a tenth of a millisecond. Load, uptime, memory, processors and the kernel's version and file systems stay:
# build systems, `ps` and `top` ask for them.
MASKED_PROC_FILES = (
    *(
        "cgroups",
        "cmdline",
        "config.gz",
        "consoles",
        "crypto",
        "devices",
        "diskstats",
        "interrupts",
        "iomem",
        "ioports",
    ),
    *("kallsyms", "keys", "key-users", "locks", "mdstat", "misc", "modules", "partitions", "sched_debug", "softirqs"),
    *("swaps", "sys/fs/dentry-state", "sys/fs/file-nr", "sys/fs/inode-nr", "sys/fs/inode-state"),
    *("sys/kernel/pty/nr", "sys/kernel/random/boot_id"),
)
MASKED_PROC_DIRECTORIES = ("acpi", "asound", "bus", "driver", "fs", "irq", "scsi")


class Arguments(tuple[str, ...]):
    """Words for bubblewrap. `--args` separates them by NUL: a word that has one cannot be in this list."""

    __slots__ = ()

    def __new__(cls, words: Iterable[str]) -> "Arguments":
        """Raise ValidationFailed for a word that would not arrive as it is."""
        made = super().__new__(cls, words)
        for word in made:
            if "\0" in word or not _can_be_encoded(word):
                raise ValidationFailed(f"{word!r} cannot be a part of a path or name")
        return made

    def encode(self) -> bytes:
        """The content of the file that `--args` reads."""
        return b"".join(os.fsencode(word) + b"\0" for word in self)


def _can_be_encoded(word: str) -> bool:
    try:
        os.fsencode(word)
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host as the jail needs it: its links and directories, and this sandbox's own places.

    With `has_users` a whole range of users is mapped from outside, and the agent is root among them.
    """

    root_links: Mapping[str, str]
    root_directories: tuple[str, ...]
    etc: str
    proc_files: tuple[str, ...]
    proc_directories: tuple[str, ...]
    masks_are_copied: bool
    empty: str
    agent: str
    interpreter: str
    interpreter_prefix: str | None
    resolv_conf: str | None
    workspace: str
    home: str
    tmp: str
    shell: str
    executor: str
    python: str | None
    user_id: int = USER_ID
    group_id: int = USER_ID
    has_image: bool = False
    has_users: bool = False


def place_mark(key: str) -> str:
    """Return the argument that marks the processes of a sandbox, also those that belong to no control group yet.

    Every user of the host can read it; it does not tell the key.
    """
    return f"place={hashlib.sha256(key.encode()).hexdigest()[:24]}"


def copy_mark(key: str) -> str:
    """Return the name under which the files of a sandbox are copied, by which the program that does it is found."""
    return place_mark(key).replace("place", "copy", 1)


def agent_command(
    interpreter: Sequence[str],
    directory: str,
    control: int,
    open_files: tuple[int, int],
    limits: Mapping[str, int],
    mark: str,
    sudo: str | None = None,
) -> list[str]:
    """The program that becomes PID 1, the descriptor of its control socket, and the limits for what it starts.

    `sudo` is the number of the user who has it, or `off`; without it there is no such program.
    """
    words = [*map(str, open_files), *(f"{name}={value}" for name, value in limits.items()), mark]
    words += [] if sudo is None else [f"sudo={sudo}"]
    return [*interpreter, "-I", "-S", "-B", f"{directory}/init.pyc", directory, str(control), *words]


def jail_arguments(
    spec: SandboxSpec,
    host: Host,
    mounts: Sequence[Mount],
    staged: Mapping[str, Mount],
    *,
    info_descriptor: int,
    filter_descriptor: int,
    block_descriptor: int | None = None,
    users_descriptor: int | None = None,
) -> Arguments:
    """Return all arguments of bubblewrap, in order; later entries stand on earlier ones.

    `mounts` are those that it binds, `staged` some of them: core/mount. From `block_descriptor` it reads when its users
    are mapped; `users_descriptor` is a user namespace where they are.
    """
    words = (
        *_users(host, block_descriptor, users_descriptor),
        *_namespaces(spec),
        *_system(host),
        *_etc(spec, host),
        *_devices(host),
        *_writable(host),
        *_agent(host, staged),
        *_mounts(mounts, staged),
        *("--seccomp", str(filter_descriptor), "--info-fd", str(info_descriptor)),
        *("--chdir", "/", "--clearenv", "--setenv", "LANG", "C.UTF-8"),
    )
    return Arguments(words)


def _namespaces(spec: SandboxSpec) -> list[str]:
    arguments = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if spec.network is not Network.HOST:
        arguments.append("--unshare-net")
    arguments += ["--hostname", HOSTNAME, "--die-with-parent", "--new-session", "--as-pid-1"]
    return arguments


def _users(host: Host, block_descriptor: int | None, users_descriptor: int | None) -> list[str]:
    """One user, or a map that is written from outside, with which --disable-userns is refused: attach does that."""
    alone = ["--cap-drop", "ALL"]
    if not host.has_users:
        own = ["--disable-userns", "--uid", str(host.user_id), "--gid", str(host.group_id)]
        return ["--unshare-user", *alone, *own]
    kept = [word for capability in ROOT_CAPABILITIES for word in ("--cap-add", capability)]
    if users_descriptor is not None:
        return ["--userns", str(users_descriptor), "--uid", "0", "--gid", "0", *alone, *kept]
    assert block_descriptor is not None
    return ["--unshare-user", *alone, "--userns-block-fd", str(block_descriptor), *kept]


def _system(host: Host) -> list[str]:
    arguments = ["--size", str(ROOT_BYTES), "--tmpfs", "/", "--ro-bind", "/usr", "/usr"]
    for name, target in host.root_links.items():
        arguments += ["--symlink", target, f"/{name}"]
    for name in host.root_directories:
        arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    return arguments


def _etc(spec: SandboxSpec, host: Host) -> list[str]:
    arguments = ["--ro-bind", host.etc, "/etc"]
    if spec.network is Network.HOST and host.resolv_conf is not None:
        arguments += ["--ro-bind", host.resolv_conf, "/etc/resolv.conf"]
    return arguments


def _devices(host: Host) -> list[str]:
    files, directories = host.proc_files, host.proc_directories
    if host.masks_are_copied:
        files, directories = files[:1], directories[:1]
    masks = [word for name in files for word in ("--ro-bind", "/dev/null", f"/proc/{name}")]
    masks += [word for name in directories for word in ("--ro-bind", host.empty, f"/proc/{name}")]
    return [
        *("--proc", "/proc", *masks, "--dev", "/dev"),
        *("--size", str(SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"),
        *("--remount-ro", "/dev"),
    ]


def copied_masks(host: Host) -> dict[str, str]:
    """The masks that bubblewrap leaves to be made as copies of the first of their kind: target and source, inside."""
    if not host.masks_are_copied:
        return {}
    return {
        f"/proc/{name}": f"/proc/{names[0]}" for names in (host.proc_files, host.proc_directories) for name in names[1:]
    }


def _writable(host: Host) -> list[str]:
    return [
        *("--dir", "/var", "--symlink", "/tmp", "/var/tmp"),
        *("--bind", host.workspace, WORKSPACE),
        *("--bind", host.home, HOME),
        *("--bind", host.tmp, "/tmp"),
    ]


def _agent(host: Host, staged: Mapping[str, Mount]) -> list[str]:
    # Mounts of their own, so that nobody inside can move them away or close them to the sessions.
    arguments = ["--size", str(RUN_BYTES), "--tmpfs", "/run", "--size", str(RUN_BYTES), "--tmpfs", "/run/cove"]
    arguments += ["--ro-bind", host.agent, AGENT_DIRECTORY, "--ro-bind", host.shell, SHELL_DIRECTORY]
    arguments += ["--ro-bind", host.executor, EXECUTOR_DIRECTORY]
    if host.has_image:
        arguments += ["--ro-bind", "/usr", HOST_DIRECTORY]
    if host.python is not None:
        arguments += ["--ro-bind", host.python, IMAGE_PYTHON_DIRECTORY if host.has_image else PYTHON_DIRECTORY]
    if host.interpreter_prefix is not None:
        arguments += ["--ro-bind", host.interpreter_prefix, INTERPRETER_DIRECTORY]
    if staged:
        arguments += ["--size", str(RUN_BYTES), "--tmpfs", STAGING_DIRECTORY]
    return [*arguments, "--remount-ro", "/run/cove"]


def _mounts(mounts: Sequence[Mount], staged: Mapping[str, Mount]) -> list[str]:
    targets = {mount.target: place for place, mount in staged.items()}
    arguments = []
    for mount in mounts:
        option = "--ro-bind" if mount.read_only else "--bind"
        arguments += [option, mount.source, targets.get(mount.target, mount.target)]
    return arguments
