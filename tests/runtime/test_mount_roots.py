"""A path inside that another changed meanwhile is refused, whatever it leads to now."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cove.attach import Target
from cove.errors import PermissionDenied
from cove.runtime.mount_roots import root_at


@pytest.fixture
def target() -> Iterator[Target]:
    pidfd = os.pidfd_open(os.getpid())
    try:
        yield Target(pidfd, os.getpid(), None)
    finally:
        os.close(pidfd)


@pytest.mark.parametrize("change", ["none", "missing", "link", "file above"])
def test_a_path_without_the_mount_is_refused(target: Target, change: str, tmp_path: Path) -> None:
    point = tmp_path / "inner" / "point"
    if change == "none":
        point.mkdir(parents=True)
    elif change == "link":
        (tmp_path / "inner").symlink_to("/proc")
    elif change == "file above":
        (tmp_path / "inner").touch()
    with pytest.raises(PermissionDenied, match="was changed while it was mounted"):
        root_at(target, str(point))


def test_a_mount_is_found(target: Target) -> None:
    status = os.stat("/proc")
    assert root_at(target, "/proc") == (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
