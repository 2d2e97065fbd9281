"""Attempts at privilege escalation."""

import os
import resource
import shutil
import stat
import subprocess
from pathlib import Path

from cove.verify.inside.harness import Blocked, Facts, call_library, probe

AREA = "privilege"


def _status(field: str) -> str:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return line.split(":", 1)[1].strip()
    raise Blocked(f"there is no {field}")


@probe(AREA, "code runs as the user who runs Cove, and as no other")
def be_the_user_of_the_host(facts: Facts) -> str:
    """Make a file, which shows this user is on the host; here only whether it is called that."""
    inside, outside, _ = Path("/proc/self/uid_map").read_text().split()[:3]
    if inside != outside:
        raise Blocked(f"the user is {os.getuid()} of a namespace")
    return f"user {os.getuid()} of the host"


@probe(AREA, "root can be had by asking")
def become_root(facts: Facts) -> str:
    os.setresuid(0, 0, 0)
    return "it is root"


@probe(AREA, "another user can be had by asking")
def become_another_user(facts: Facts) -> str:
    os.setresuid(65534, 65534, 65534)
    return "it is nobody"


@probe(AREA, "other groups can be had by asking")
def change_groups(facts: Facts) -> str:
    os.setgroups([0])
    return "it is in the group of root"


@probe(AREA, "there are capabilities")
def have_capabilities(facts: Facts) -> str:
    held = {name: _status(name) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb", "CapInh")}
    if not any(int(value, 16) for value in held.values()):
        raise Blocked("all sets are empty")
    return f"{held}"


@probe(AREA, "programs can give rights to those who start them")
def gain_new_privileges(facts: Facts) -> str:
    if _status("NoNewPrivs") == "1":
        raise Blocked("no new privileges")
    return "the flag is not set"


@probe(AREA, "a set-user-id program of one's own gives rights")
def use_a_set_user_id_program(facts: Facts) -> str:
    path = f"/tmp/.cove-verify-id-{os.getpid()}"
    shutil.copy("/usr/bin/id", path)
    try:
        os.chown(path, 65534, -1)
        os.chmod(path, 0o4755)
        return f"runs as {subprocess.run([path, '-u'], capture_output=True, text=True, check=False).stdout}"
    finally:
        os.unlink(path)


@probe(AREA, "files can be given to others")
def give_a_file_away(facts: Facts) -> str:
    path = f"/tmp/.cove-verify-file-{os.getpid()}"
    Path(path).touch()
    try:
        os.chown(path, 0, 0)
        os.chown(path, 65534, 65534)
    finally:
        os.unlink(path)
    return "it belongs to nobody"


@probe(AREA, "file capabilities can be set")
def set_file_capabilities(facts: Facts) -> str:
    path = f"/tmp/.cove-verify-capable-{os.getpid()}"
    Path(path).touch()
    try:
        os.setxattr(path, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    finally:
        os.unlink(path)
    return "they were set"


@probe(AREA, "the limits that were set can be raised")
def raise_limits(facts: Facts) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard + 1))
    except ValueError as error:
        raise Blocked(str(error)) from None
    return f"{hard + 1} open files"


@probe(AREA, "the rules by which root has its rights can be changed")
def set_a_secure_bit(facts: Facts) -> str:
    set_securebits = 28
    call_library("prctl", set_securebits, 0, 0, 0, 0)
    return "the secure bits were set"


@probe(AREA, "the system's set-user-id programs work")
def use_the_systems_set_user_id_programs(facts: Facts) -> str:
    for name in ("su", "mount", "passwd", "newgrp"):
        path = shutil.which(name, path="/usr/bin:/bin")
        if path is not None and os.stat(path).st_mode & stat.S_ISUID and os.stat(path).st_uid == 0:
            return f"{path} belongs to root and gives its rights"
    raise Blocked("none of them gives the rights of root")
