"""Images of Debian, made by mmdebstrap."""

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from cove import AsyncImage, AsyncSandbox
from cove.errors import InterpreterNotReady, Unreachable, ValidationFailed

pytestmark = pytest.mark.anyio


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put a program in the place of mmdebstrap; its arguments are in the file that is returned."""
    program, seen = tmp_path / "bin" / "mmdebstrap", tmp_path / "seen"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" > {seen}\nfor target; do case $target in */root.tar) break;; esac; done\n{script}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return seen


async def test_what_mmdebstrap_makes_is_loaded_by_the_name_of_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "note").write_text("x")
    seen = fake(tmp_path, monkeypatch, f'tar -C {tmp_path} -cf "$target" note')
    image = await AsyncImage.bootstrap(include=["curl", "jq"])
    assert image.name == "debian:bookworm"
    words = seen.read_text().split()
    assert words[:4] == ["--variant=minbase", "--format=tar", "--include=curl,jq", "bookworm"]
    assert all(word.startswith("/etc/apt/") for word in words[5:])
    await image.delete()
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "note", "seen"}


async def test_a_failure_says_what_mmdebstrap_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "echo E: no such suite >&2; exit 1")
    with pytest.raises(Unreachable, match="no such suite"):
        await AsyncImage.bootstrap(suite="nothing")
    for wrong in ({"distribution": "other"}, {"suite": "--hook"}, {"include": ["a,b"]}, {"include": ["--x=y"]}):
        with pytest.raises(ValidationFailed):
            await AsyncImage.bootstrap(**wrong)


async def test_without_mmdebstrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InterpreterNotReady, match="apt install mmdebstrap"):
        await AsyncImage.bootstrap()


async def test_a_cancelled_bootstrap_ends_the_program_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = fake(
        tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 1000"
    )
    making = asyncio.ensure_future(AsyncImage.bootstrap())
    while not (tmp_path / "pid").exists():
        await asyncio.sleep(0.01)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert seen.exists()
    assert not list(tmp_path.glob("cove-bootstrap-*"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="needs mmdebstrap")
@pytest.mark.timeout(500)
async def test_a_real_debian_is_made() -> None:
    image = await AsyncImage.bootstrap(name="made-debian")
    async with AsyncSandbox.create(image="made-debian") as sandbox:
        assert (await sandbox.exec("cat /etc/debian_version; bash -c 'echo $0'")).stdout.startswith("12")
    await image.delete()
