"""Inspect AI, unchanged, evaluates in Cove's sandboxes: in its own program and on a server."""

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.client_packages import harness_client, installed_cove
from support.image_files import Item, symlink
from support.servers import Server, left_behind

from cove import AsyncImage

pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent
# What the checks run, beside what the image has anyway.
PROGRAMS = ("chmod", "grep", "kill", "printf", "ps", "rmdir", "wc", "whoami")
# Debian's busybox has none.
ADDUSER = b"""#!/bin/sh
[ "$1" = --help ] && { echo 'as in BusyBox: adduser -D NAME'; exit; }
echo "$2:x:1234:1234::/tmp:/bin/sh" >> /etc/passwd
echo "$2:x:1234:" >> /etc/group
"""
# The checks that are not Inspect's own.
OURS = (
    "-n",
    "2",
    "-k",
    "evaluation or configuration or command or connect or gone or found_by or setup or exec_output",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="several users in a sandbox need root")


def run_checks(tmp_path: Path, more: Mapping[str, str], *options: str) -> str:
    """Run them with the interpreter that has Inspect; returns what it tells."""
    python = harness_client()
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\ntimeout = 120\n")
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    environment = {**os.environ, **proxies, "PYTHONPATH": installed_cove(tmp_path), **more}
    command = [python, "-m", "pytest", "-q", "-n", "4", "--noconftest", "-c", ini, HERE / "inspect_checks.py"]
    done = subprocess.run(
        [str(word) for word in (*command, *options)], capture_output=True, text=True, env=environment, timeout=500
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def items() -> list[Item]:
    return [
        Item("bin/adduser", ADDUSER, mode=0o755),
        *(symlink(f"bin/{name}", "busybox") for name in PROGRAMS),
        symlink("usr/bin/env", "/bin/busybox"),
    ]


@needs_busybox
@needs_root
@pytest.mark.slow
@pytest.mark.anyio
async def test_inspects_own_checks_pass_in_full_on_an_image(tmp_path: Path) -> None:
    name = "inspect-checks:1"
    archive = write_busybox(tmp_path / "image.tar", *items(), settings={"User": "web"})
    image = await AsyncImage.load(archive, name=name)
    try:
        told = await asyncio.to_thread(run_checks, tmp_path, {"CHECKED_IMAGE": name}, "-rs")
    finally:
        await image.delete()
    assert "one user" not in told, "who runs what is checked too"


def test_an_evaluation_runs_on_the_hosts_system(tmp_path: Path) -> None:
    """Where there are no further users, with all of Inspect's own checks but that of users."""
    run_checks(tmp_path, {}, *(OURS if os.geteuid() == 0 else ()))


def test_an_evaluation_runs_on_a_server_and_leaves_nothing(tmp_path: Path, shared_server: Server) -> None:
    run_checks(tmp_path, {"COVE_URL": shared_server.url, "COVE_API_KEY": shared_server.key}, *OURS)
    assert left_behind(shared_server.home) == []


@pytest.mark.slow
def test_inspects_own_checks_pass_on_a_server(tmp_path: Path, shared_server: Server) -> None:
    run_checks(tmp_path, {"COVE_URL": shared_server.url, "COVE_API_KEY": shared_server.key})
    assert left_behind(shared_server.home) == []
