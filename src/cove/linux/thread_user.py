"""Change the user of one thread, and of what it starts meanwhile: to the kernel, ids belong to threads (nptl(7)).

`setpriv` costs a start two milliseconds, and `subprocess` with `user=` a fork of this whole program. The saved user id
stays root, so that the thread can go back; execve(2) overwrites it, and drops every capability.
"""

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# setgroups(2), setresgid(2), setresuid(2): the C library's own would change all threads.
_NUMBERS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}

_library = ctypes.CDLL(None, use_errno=True)


@contextmanager
def as_user(user_id: int | None, group_id: int | None = None, others: Sequence[int] = ()) -> Iterator[None]:
    """Run as that user, in the group of the same number alone, or in these; None changes nothing. For root only."""
    if user_id is None:
        yield
        return
    groups = os.getgroups()
    dumpable = _library.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    try:
        _library.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        _set_groups([*others])
        _set_ids(1, user_id if group_id is None else group_id, saved=0)
        _set_ids(2, user_id, saved=0)
        yield
    finally:
        _set_ids(2, 0, saved=0)
        _set_ids(1, 0, saved=0)
        _set_groups(groups)
        _library.prctl(_PR_SET_DUMPABLE, dumpable, 0, 0, 0)


def _set_groups(groups: list[int]) -> None:
    _call(0, len(groups), (ctypes.c_uint32 * len(groups))(*groups))


def _set_ids(which: int, id: int, *, saved: int) -> None:
    _call(which, id, id, saved)


def _call(which: int, *arguments: object) -> None:
    if _library.syscall(_NUMBERS[platform.machine()][which], *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
