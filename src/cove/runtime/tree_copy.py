"""Copy the files of a frozen sandbox, for as long as somebody waits for that: a destruction ends it. Blocks.

Who ends a copy may come between its beginning and the start of the program that copies, which may be the helper's. So
whoever ends it looks for the program until the copy is over.
"""

import os
import subprocess
import threading
from contextlib import ExitStack

from cove.attach import COPY_OPTIONS, COPY_PROGRAM, CopyTree
from cove.errors import SandboxUnavailable
from cove.linux.mounts import without_links
from cove.linux.pidfd import kill_orphans
from cove.runtime.jail import Jail

SECONDS = 3600.0
_LOOK_SECONDS = 0.05


class TreeCopy:
    """Copies of one sandbox's files, one at a time; `name` is that of the program, among its arguments."""

    def __init__(self, name: str, user_id: int | None) -> None:
        self._name = name
        self._user_id = user_id
        self._is_over = threading.Event()
        self._is_over.set()
        self._is_ended = False

    def run(self, jail: Jail, source: str, target: str) -> None:
        """Copy with the rights of the sandbox's user; as root, of ours, by a mount that follows no link."""
        self._is_over.clear()
        try:
            self.check()
            is_still = jail.groups.tree is not None
            if self._user_id is None:
                jail.perform([CopyTree(source, target, self._name, is_still)], SECONDS)
            else:
                copy_tree(source, target, self._name, is_still=is_still)
        except BaseException:
            kill_orphans(self._name)  # nobody waits for it any more
            self.check()
            raise
        finally:
            self._is_over.set()

    def end(self) -> None:
        """End it, and let none begin any more; returns when it is over."""
        self._is_ended = True
        while not self._is_over.is_set():
            kill_orphans(self._name)
            self._is_over.wait(_LOOK_SECONDS)

    def check(self) -> None:
        """Raise SandboxUnavailable when copies were ended; who knows that it was destroyed says so."""
        if self._is_ended:
            raise SandboxUnavailable("the sandbox has ended while its files were copied: its files are kept, try again")


def copy_tree(source: str, target: str, name: str, *, is_still: bool) -> None:
    """Copy a tree with modes, owners, times, attributes, links among its files and holes; shared where it can be.

    By a mount that follows no link: what signals have stopped may go on, and swap a directory for a link meanwhile.
    Where none can be made, only what a control group holds `is_still` enough. `name` is that of the program, among its
    arguments.
    """
    with ExitStack() as closing:
        try:
            mount = closing.enter_context(without_links(source))
        except OSError as error:
            if not is_still:
                raise SandboxUnavailable(
                    "the files of a running sandbox can be copied only by a mount that follows no link, which needs "
                    f"Linux 5.14 and CAP_SYS_ADMIN, or while a control group freezes it: {error.strerror}"
                ) from error
            mount = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            closing.callback(os.close, mount)
        _copy_below(mount, target, name)


def _copy_below(directory: int, target: str, name: str) -> None:
    end = subprocess.run(
        [name, *COPY_OPTIONS, ".", target],
        executable=COPY_PROGRAM,
        cwd=f"/proc/self/fd/{directory}",
        pass_fds=(directory,),
        capture_output=True,
        timeout=SECONDS,
        check=False,
        env={},
    )
    if end.returncode:
        raise SandboxUnavailable(f"the files could not be copied: {end.stderr.decode('utf-8', 'replace')[-500:]}")
