"""Another user for one thread: what it starts has that user's ids and no rights, all else stays root's."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from cove.linux.thread_user import as_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

USER = 2_000_999_999
READ_STATUS = ["/bin/sh", "-c", "exec cat /proc/self/status"]


def facts(status: str) -> dict[str, list[str]]:
    return {line.split(":")[0]: line.split()[1:] for line in status.splitlines()}


def own_facts() -> dict[str, list[str]]:
    return facts(Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text())


def test_a_program_has_all_ids_of_the_user_no_group_and_no_capability() -> None:
    with as_user(USER):
        started = subprocess.run(READ_STATUS, capture_output=True, text=True, check=True)
    found = facts(started.stdout)
    assert found["Uid"] == found["Gid"] == [str(USER)] * 4
    assert found["Groups"] == []
    assert {found[name][0] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}


def test_other_threads_stay_root_and_the_thread_comes_back() -> None:
    before = own_facts()
    seen: dict[str, list[str]] = {}
    with as_user(USER):
        other = threading.Thread(target=lambda: seen.update(own_facts()))
        assert own_facts()["Uid"] == [str(USER), str(USER), "0", str(USER)]
    main = facts(Path(f"/proc/self/task/{os.getpid()}/status").read_text())
    other.start()
    other.join()
    for name in ("Uid", "Gid", "Groups", "CapPrm", "CapEff"):
        assert own_facts()[name] == before[name] == seen[name] == main[name]


def test_the_thread_comes_back_after_a_failure() -> None:
    with pytest.raises(PermissionError), as_user(USER):
        Path("/etc/shadow").read_text()
    assert Path("/etc/shadow").read_text()


def test_the_program_can_be_examined_as_before() -> None:
    before = Path("/proc/self/status").stat().st_uid
    with as_user(USER):
        pass
    assert Path("/proc/self/status").stat().st_uid == before
    assert os.readlink("/proc/self/exe")


def test_no_user_changes_nothing() -> None:
    with as_user(None):
        assert os.geteuid() == 0
