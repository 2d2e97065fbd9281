"""Standing in a directory without following links, on a kernel that has no mount for it."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

ENTER = """
import os, sys
from cove.attach import kernel

path, number = sys.argv[1], int(sys.argv[2])
kernel.MOUNT_SETATTR = number or kernel.MOUNT_SETATTR
for is_still in (False, True):
    try:
        kernel.enter_without_links(path, os.open(path, os.O_PATH), is_still=is_still)
        print(os.listdir("."))
    except kernel.Failed as failure:
        print(failure.number)
"""
NO_CALL = 100_000


@pytest.mark.parametrize(("number", "first"), [(NO_CALL, str(errno.ENOSYS)), (0, "['file']")])
def test_only_what_stands_still_is_entered_where_links_might_be_followed(
    tmp_path: Path, number: int, first: str
) -> None:
    (tmp_path / "file").touch()
    enter = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", ENTER]
    end = subprocess.run([*enter, str(tmp_path), str(number)], capture_output=True, text=True, timeout=60, check=False)
    if end.returncode and "unshare" in end.stderr:
        pytest.skip("no user namespace can be made here")
    assert end.stdout.splitlines() == [first, "['file']"], end.stderr
