"""What hostile sandboxes, hostile and careless clients, and bad luck do to a server."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.servers import Server, eventually, serving

from cove import AsyncSandbox
from cove.errors import LimitExceeded, SandboxAlreadyExists, SandboxNotFound, SandboxUnavailable
from cove.runtime.terminals import MOST_RUNNING
from cove.server.gateway.auth import load_key
from cove.server.sandboxes.destroy_sandbox import collect_garbage
from cove.server.worker import limits_for

pytestmark = pytest.mark.anyio


async def test_a_sandbox_that_stops_all_the_time_answers_every_call_once(other_home: Path) -> None:
    """Calls come about when it stops: each is answered by the runtime that stops or by the next, and runs once."""
    moments = random.Random(7)

    async def use(sandbox: AsyncSandbox) -> None:
        for number in range(25):
            (await sandbox.exec(f"echo {number} >> calls")).check()
            await asyncio.sleep(moments.uniform(0.03, 0.09))
        assert await sandbox.files.read_text("calls") == "".join(f"{number}\n" for number in range(25))

    with serving(other_home) as server:
        made = [await server.create(idle_timeout=0.05) for _ in range(3)]
        await asyncio.gather(*map(use, made))
        for sandbox in made:
            await sandbox.destroy()


def test_a_worker_takes_no_more_connections_than_it_has_descriptors_for() -> None:
    assert limits_for(256).connections == 42
    assert limits_for(1 << 20).connections == 4096


async def test_an_id_that_is_made_anew_while_its_hung_runtime_is_ended_leads_to_the_new_sandbox(
    other_home: Path,
) -> None:
    with serving(other_home) as server:
        old = await server.create("x")
        await asyncio.gather(*(old.exec("echo old > marker; sleep 0.1") for _ in range(8)))  # all workers know it
        os.kill(await server.runtime("x"), signal.SIGSTOP)
        destroying = asyncio.ensure_future(old.destroy())
        new = await _create_when_free(server, "x")
        seen = await asyncio.gather(*(new.exec("cat marker 2>&- || echo new") for _ in range(8)))
        assert [each.stdout for each in seen] == ["new\n"] * 8
        await destroying
        await new.destroy()


async def _create_when_free(server: Server, id: str) -> AsyncSandbox:
    while True:
        try:
            return await server.create(id)
        except SandboxAlreadyExists:
            await asyncio.sleep(0.01)


async def test_a_record_that_is_spoilt_takes_no_other_sandbox_with_it(other_home: Path) -> None:
    with serving(other_home) as server:
        spoilt, fine = await server.create("spoilt"), await server.create("fine")
        place = server.directory.place((await server.record("spoilt")).key)
        (place / "sandbox.json").write_bytes(b"")
        assert [info.id for info in await AsyncSandbox.list(url=server.url, api_key=server.key)] == ["fine"]
        await asyncio.to_thread(collect_garbage, other_home)
        with pytest.raises(SandboxUnavailable, match="cannot be read"):
            await server.connect("spoilt")
        await spoilt.destroy()
        await fine.destroy()
        assert not place.exists()


async def test_nobody_else_can_hold_a_lock_against_a_runtime(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x")
        place = server.directory.place((await server.record("x")).key)
        readable = [path.name for path in place.iterdir() if path.is_file() and path.stat().st_mode & 0o044]
        assert readable in ([], ["user"])
        await sandbox.destroy()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file that belongs to somebody else")
def test_a_key_that_somebody_else_has_put_there_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVE_API_KEY", raising=False)
    key = tmp_path / "key"
    key.write_text("known-to-somebody")
    key.chmod(0o600)
    os.chown(key, 12345, 12345)
    with pytest.raises(SandboxUnavailable, match="another user"):
        load_key(tmp_path)


async def test_one_sandbox_cannot_use_up_the_terminals_of_the_machine(shared_server: Server) -> None:
    async with AsyncSandbox.create(url=shared_server.url, api_key=shared_server.key) as sandbox:
        terminals = await asyncio.gather(*(sandbox.terminal(shell=["sleep", "1000"]) for _ in range(MOST_RUNNING)))
        with pytest.raises(LimitExceeded):
            await sandbox.terminal()
        await terminals[0].destroy()
        await sandbox.terminal(id="another")


async def test_an_idle_sandbox_whose_record_cannot_be_written_is_not_lost(other_home: Path) -> None:
    with serving(other_home) as server:
        sandbox = await server.create("x", idle_timeout=1.0)
        runtime = await server.runtime("x")
        place = server.directory.place((await server.record("x")).key)
        (place / ".sandbox.json.new").mkdir()  # as on a full disk, nothing can be written there
        await eventually(lambda: "cannot record" in (place / "runtime.log").read_text())
        assert (await sandbox.exec("echo still here")).stdout == "still here\n"
        assert await server.runtime("x") == runtime
        (place / ".sandbox.json.new").rmdir()
        await eventually(lambda: not server.directory.is_held(place.name))
        assert (await sandbox.exec("echo back")).stdout == "back\n"
        await sandbox.destroy()


@pytest.mark.parametrize("content", [b"", bytes(12), b"\xff" * 12, b"../../../etc", b"abcdefghijk2" * 2])
async def test_the_file_of_an_id_that_is_spoilt_leads_nowhere(shared_server: Server, content: bytes) -> None:
    directory = shared_server.directory
    entry = directory.entry("spoilt")
    entry.write_bytes(content)
    with pytest.raises(SandboxNotFound):
        await shared_server.connect("spoilt")
    await asyncio.to_thread(collect_garbage, directory.home)
    assert not entry.exists()


def test_no_log_of_a_runtime_is_for_others_to_read(tmp_path: Path) -> None:
    program = """
        import logging, os, pathlib, sys
        from cove.server.runtime.open_sandbox import log_to
        os.umask(0)
        log_to(pathlib.Path(sys.argv[1]))
        for _ in range(3):
            logging.error("x" * 600_000)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=True, timeout=60)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "runtime.log": 0o600,
        "runtime.log.1": 0o600,
    }
