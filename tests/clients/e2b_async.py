"""Drives the asynchronous Python client of E2B, unchanged, against a Cove server."""

import asyncio
import time

import pytest
from e2b import (
    AsyncSandbox,
    CommandExitException,
    FileNotFoundException,
    PtySize,
    SandboxException,
    SandboxQuery,
    TimeoutException,
)


async def test_life():
    sandbox = await AsyncSandbox.create(timeout=100, metadata={"kind": "async"})
    pages = AsyncSandbox.list(query=SandboxQuery(metadata={"kind": "async"}))
    assert [each.sandbox_id for each in await pages.next_items()] == [sandbox.sandbox_id]
    assert await sandbox.is_running()
    assert await sandbox.pause()
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert (await again.commands.run("echo again")).stdout == "again\n"
    assert await sandbox.kill()
    assert not await sandbox.is_running()
    with pytest.raises(SandboxException):
        await sandbox.commands.run("true")


async def test_commands():
    async with await AsyncSandbox.create() as sandbox:
        seen = []
        running = await sandbox.commands.run(
            "echo one; read line; echo $line; exit 2", background=True, stdin=True, on_stdout=seen.append, timeout=0
        )
        second = await sandbox.commands.connect(running.pid)
        await sandbox.commands.send_stdin(running.pid, "two\n")
        with pytest.raises(CommandExitException) as ended:
            await running.wait()
        assert (ended.value.exit_code, ended.value.stdout) == (2, "one\ntwo\n")
        assert "".join(seen) == "one\ntwo\n"
        with pytest.raises(CommandExitException):
            await second.wait()
        with pytest.raises(TimeoutException):
            await sandbox.commands.run("sleep 100", timeout=0.5)

        many = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(60)))
        assert [each.stdout for each in many] == [f"{number}\n" for number in range(60)]

        sleeping = await sandbox.commands.run("sleep 100 & sleep 200", background=True)
        assert await sleeping.kill()
        assert not await sandbox.commands.kill(sleeping.pid)
        assert await sandbox.commands.list() == []


async def test_silent_input():
    """A stream of input may be silent for as long as it likes; what is typed arrives at once."""
    async with await AsyncSandbox.create() as sandbox:
        heard = asyncio.Event()
        echo = await sandbox.commands.run(
            "cat", background=True, stdin=True, on_stdout=lambda _: heard.set(), timeout=0
        )

        typing = sandbox.commands.stream_input(echo.pid, timeout=0)
        await typing.send("first\n")
        await heard.wait()
        await typing.send("second\n")
        await typing.close()
        await echo.close_stdin()
        assert (await echo.wait()).stdout == "first\nsecond\n"


async def test_files():
    async with await AsyncSandbox.create() as sandbox:
        await sandbox.files.write_files([{"path": f"many/{n}", "data": str(n)} for n in range(20)])
        assert len(await sandbox.files.list("many")) == 20
        assert await sandbox.files.read("many/7") == "7"
        seen = asyncio.Queue()
        watcher = await sandbox.files.watch_dir("many", on_event=seen.put_nowait, include_entry=True, timeout=0)
        await sandbox.files.write("many/new", "x")
        created = await seen.get()
        while created.name != "new" or created.type.value != "create":
            created = await seen.get()
        assert created.entry.path == "/home/user/many/new"
        await sandbox.files.rename("many/new", "many/newer")
        kinds = []
        while ("newer", "create") not in kinds:
            event = await seen.get()
            kinds.append((event.name, event.type.value))
        assert kinds.index(("new", "rename")) < kinds.index(("newer", "create"))
        await watcher.stop()
        with pytest.raises(FileNotFoundException):
            await sandbox.files.watch_dir("nowhere", on_event=print)


async def test_terminal():
    async with await AsyncSandbox.create() as sandbox:
        shown = bytearray()
        terminal = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=shown.extend, timeout=0)
        await sandbox.pty.send_stdin(terminal.pid, b"echo $((6*7))\n")
        while b"42" not in shown:
            await asyncio.sleep(0.01)
        await terminal.disconnect()
        late = bytearray()
        again = await sandbox.pty.connect(terminal.pid, on_data=late.extend)
        await sandbox.pty.send_stdin(terminal.pid, b"echo $((7*7)); exit\n")
        await again.wait()
        assert b"49" in late
        assert b"42" not in late


async def main():
    began = time.monotonic()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            await test()
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    assert await AsyncSandbox.list().next_items() == []
    print("all is well")


if __name__ == "__main__":
    asyncio.run(main())
