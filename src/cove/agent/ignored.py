"""Find what Git ignores in a directory, by asking Git: git-ls-files(1).

Where there is no repository, an empty one elsewhere is used, so that every `.gitignore` counts all the same.
"""

from __future__ import annotations

import os

from cove.agent.tree import TooMany
from cove.archive.remove_tree import remove_tree
from cove.archive.tar import Refused

MOST_OUTPUT = 64 << 20
GIT = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"]
IGNORED = ["ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"]
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": os.environ.get("HOME", "/home/user"),
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
NOT_FOUND = 127


def ignored_paths(top: bytes) -> set[tuple[bytes, ...]]:
    """Return the paths below a directory that Git ignores, files that it tracks never among them."""
    os.chdir(top)
    code, output = run([*GIT, *IGNORED])
    if code:
        code, output = run_without_repository()
    if code:
        raise Refused("git cannot tell which files it ignores: is it installed?")
    paths = [tuple(part for part in path.split(b"/") if part not in (b"", b".")) for path in output.split(b"\0")]
    return {path for path in paths if path}


def run_without_repository() -> tuple[int, bytes]:
    """Ask with the help of a repository that has nothing."""
    place = os.path.join(os.environ.get("TMPDIR", "/tmp"), ".cove-" + os.urandom(8).hex())
    os.mkdir(place, 0o700)
    try:
        code, output = run([*GIT, "init", "--quiet", "--bare", "--template=", place])
        if code:
            return code, output
        return run([*GIT, "--git-dir", place, "--work-tree", ".", *IGNORED])
    finally:
        remove_tree(place)


def run(command: list[str]) -> tuple[int, bytes]:
    """Run a program; return its exit code and what it prints."""
    read, write = os.pipe()
    try:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, write, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        child = os.posix_spawnp(command[0], command, ENVIRONMENT, file_actions=actions)
    except FileNotFoundError:
        os.close(read)
        return NOT_FOUND, b""
    finally:
        os.close(write)
    try:
        output = read_all(read)
    finally:
        os.close(read)
        status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), output


def read_all(descriptor: int) -> bytes:
    """Read up to the end, within bounds."""
    chunks = []
    size = 0
    while chunk := os.read(descriptor, 1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        if size > MOST_OUTPUT:
            raise TooMany("Git ignores more than %d MiB of paths: save less at once" % (MOST_OUTPUT >> 20))
    return b"".join(chunks)
