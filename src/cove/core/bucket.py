"""Build the command lines, environments and jails of rclone: pure functions of a bucket mount.

rclone runs outside the sandbox, in a jail of its own: it sees the system's programs, certificates and one directory.
Credentials are in its environment alone. Where it reads a directory that code inside can change, it has no
/proc, so that no link leads to that environment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cove.errors import SecretUnavailable
from cove.model import BucketMount

REMOTE = "b"
MOUNT_POINT = "/mnt"
DIRECTORY = "/data"
CACHE = "/cache"
# How long an endpoint may not answer. rclone tries four times, then what waits gets an I/O error. The kernel asks for
# the content of a file once more when it could not be read ahead: a read waits for up to eight times as long.
ANSWER_SECONDS = 2.0
# Soft: Go collects more often near it.
_MEMORY = "256MiB"
_CACHE_BYTES = "1G"
_MOST_PARTS = 3
# What the program itself reads; it ends at once where these are missing.
_NEEDED_FILES = ("/proc/sys/fs/pipe-max-size",)
_ETC = ("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/nsswitch.conf", "/etc/alternatives")
_NAMES = ("/etc/resolv.conf", "/etc/hosts")


def _bounds() -> tuple[str, ...]:
    return (
        *("--config", "", "--log-level", "ERROR", "--retries", "1", "--low-level-retries", "1"),
        *("--contimeout", f"{ANSWER_SECONDS:g}s", "--timeout", f"{ANSWER_SECONDS:g}s", "--buffer-size", "4M"),
    )


def environment(mount: BucketMount, credentials: str | None) -> dict[str, str]:
    """The environment of rclone for a bucket: all that it knows of it, and nothing of ours."""
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": mount.endpoint,
        "REGION": mount.region,
        "ENV_AUTH": "false",
        "FORCE_PATH_STYLE": "true",
        "NO_CHECK_BUCKET": "true",
        **({} if credentials is None else _keys(credentials)),
    }
    named = {f"RCLONE_CONFIG_{REMOTE.upper()}_{name}": value for name, value in settings.items()}
    return {"PATH": "/usr/bin:/bin", "HOME": "/", "GOMEMLIMIT": _MEMORY, **named}


def _keys(credentials: str) -> Mapping[str, str]:
    parts = credentials.split(":", _MOST_PARTS - 1)
    if len(parts) < _MOST_PARTS - 1 or not all(parts):
        raise SecretUnavailable("the credentials of a bucket are ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]")
    return dict(zip(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"), parts, strict=False))


def secrets_in(credentials: str | None) -> list[str]:
    """The words of credentials that no message may show."""
    return [] if credentials is None else sorted(credentials.split(":", _MOST_PARTS - 1), key=len, reverse=True)


def remote(mount: BucketMount) -> str:
    """The bucket as rclone names it."""
    return f"{REMOTE}:{mount.bucket}/{mount.prefix}".rstrip("/")


def list_command(mount: BucketMount) -> list[str]:
    """Look into the bucket: fails where it, or the right to it, is missing."""
    return ["rclone", "lsf", "--max-depth", "1", *_bounds(), remote(mount)]


def mount_command(mount: BucketMount) -> list[str]:
    """Serve the bucket at MOUNT_POINT until told to stop. What was written is sent when it is closed."""
    cache = ("--cache-dir", CACHE, "--vfs-cache-mode", "writes", "--vfs-write-back", "0s")
    bounds = ("--vfs-cache-max-size", _CACHE_BYTES, "--dir-cache-time", "10s", "--poll-interval", "0")
    owner = ("--uid", "0", "--gid", "0", "--umask", "077", *(("--read-only",) if mount.read_only else ()))
    return ["rclone", "mount", *_bounds(), *cache, *bounds, *owner, remote(mount), MOUNT_POINT]


def copy_command(mount: BucketMount, *, outward: bool, most_bytes: int | None) -> list[str]:
    """Copy what differs between DIRECTORY and the bucket. Deletes nothing, follows no link."""
    ends = (DIRECTORY, remote(mount)) if outward else (remote(mount), DIRECTORY)
    most = () if most_bytes is None else ("--max-transfer", f"{most_bytes}B", "--cutoff-mode", "hard")
    return ["rclone", "copy", *_bounds(), "--skip-links", *most, *ends]


@dataclass(frozen=True, slots=True, kw_only=True)
class RcloneJail:
    """The jail of one rclone. `fuse` is the device, for one that mounts; `hosts` are the only names it can resolve."""

    root_links: Mapping[str, str]
    root_directories: Sequence[str]
    directory: str | None = None
    cache: str | None = None
    fuse: str | None = None
    hosts: str | None = None

    def arguments(self, mark: str, info: int) -> list[str]:
        """Words for bubblewrap."""
        return [
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
            *("--uid", "0", "--gid", "0", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"),
            *("--ro-bind", "/usr", "/usr"),
            *(word for name, to in self.root_links.items() for word in ("--symlink", to, f"/{name}")),
            *(word for name in self.root_directories for word in ("--ro-bind", f"/{name}", f"/{name}")),
            *(word for path in (*_ETC, *self._names()) for word in ("--ro-bind-try", path, path)),
            *(() if self.hosts is None else ("--ro-bind", self.hosts, "/etc/hosts")),
            *("--dev-bind", "/dev/null", "/dev/null", "--tmpfs", "/tmp"),
            *self._place(),
            *("--setenv", "COVE_PLACE", mark, "--info-fd", str(info), "--chdir", "/"),
        ]

    def _names(self) -> Sequence[str]:
        return _NAMES if self.hosts is None else ()

    def _place(self) -> list[str]:
        if self.fuse is None:
            needed = [word for path in _NEEDED_FILES for word in ("--ro-bind", path, path)]
            return [*needed, *(() if self.directory is None else ("--bind", self.directory, DIRECTORY))]
        assert self.cache is not None
        return [
            *("--cap-add", "CAP_SYS_ADMIN", "--proc", "/proc", "--dev-bind", self.fuse, "/dev/fuse"),
            *("--dir", MOUNT_POINT, "--bind", self.cache, CACHE),
        ]
