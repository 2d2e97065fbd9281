"""A program in the place of a session's shell says whatever it likes, as much and as fast as it can."""

import asyncio
import contextlib

import pytest
from support.loop_time import bounded_callbacks

from cove import AsyncSandbox, CoveError, LimitExceeded
from cove.api import Session

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

# Takes the shell's place and answers every `go`; what it says is made from one kind of forgery.
PROGRAM = r"""
import os, sys
place, first, kind = sys.argv[1:4]
open_fifo = lambda name: os.open(f"{place}/{name}", os.O_WRONLY)
go = os.open(f"{place}/go", os.O_RDONLY)
done, exports, state = map(open_fifo, ("done", "exports", "state"))

def write(descriptor, data):
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]

def report(id):
    write(done, id + b"\0000\0/tmp\0")

fields = b"/\0\0" + b"0\0" + b"0\0" + b"0\0" + b"022\0" + b"\0" * 5
texts = {
    "quotes": b'declare -- x="' + b'\\"' * (7 << 20) + b'"\n',
    "escapes": b"declare -- x=$'" + b"\\377" * (4 << 20) + b"'\n",
    "lists": b"declare -a x=(" + b'[0]="" ' * (2 << 20) + b")\n",
    "parentheses": b"declare -a x=" + b"(" * (15 << 20) + b"\n",
    "many": b'declare -x x="1"\n' * 900_000,
    "endless": b"x" * (200 << 20),
    "nuls": b"\0" * (15 << 20),
}
text = texts[kind]
report(first.encode())
write(exports, text.replace(b"\0", b"") + b"\0")
while os.read(go, 3):
    words = open(f"{place}/command", "rb").read().split(b"\0")
    if b"__cove_snapshot" in words[5]:
        write(state, fields + text + b"\0\0\0")
    report(words[0])
    write(exports, text.replace(b"\0", b"") + b"\0")
"""
KINDS = ["quotes", "escapes", "lists", "parentheses", "many", "endless", "nuls"]


async def impostor(sandbox: AsyncSandbox, kind: str) -> Session:
    """A session whose shell is the program."""
    await sandbox.files.write("/tmp/impostor.py", PROGRAM)
    session = await sandbox.create_session()
    await session.exec("x=1")
    await session.exec(f'exec python3 /tmp/impostor.py "$__cove" "$__cove_id" {kind}')
    return session


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(300)
async def test_no_forgery_keeps_the_runtime_from_others(kind: str) -> None:
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create() as neighbour, asyncio.timeout(270):
        for attempt in bounded_callbacks():
            session = await impostor(sandbox, kind)
            with attempt:
                for _ in range(2):
                    with contextlib.suppress(CoveError):
                        await session.exec(":", timeout=10)
                    with contextlib.suppress(CoveError):
                        await session.env()
                    with contextlib.suppress(CoveError):
                        await (await session.start_process("true", timeout=5)).wait()
                    assert (await neighbour.exec("echo fine")).stdout == "fine\n"
            assert (await sandbox.exec("echo fine")).stdout == "fine\n"


FLOODS = {
    "reports": "while :; do printf '%s\\0000\\0/tmp\\0' $__cove_id; done > $__cove/done",
    "one report": "(printf '%s\\0000\\0' $__cove_id; head -c 1000000 /dev/zero | tr '\\0' x) > $__cove/done",
    "nothing": "cat /dev/zero > $__cove/done",
    "exports": "cat /dev/zero > $__cove/exports",
    "interruptions": "while :; do printf 't%s\\0000\\0/\\0' $__cove_id; done > $__cove/done",
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_no_flood_of_the_fifos_keeps_the_runtime_from_others(flood: str) -> None:
    async with AsyncSandbox.create() as sandbox, asyncio.timeout(90):
        for attempt in bounded_callbacks():
            session = await sandbox.create_session()
            with attempt:
                for _ in range(3):
                    with contextlib.suppress(CoveError):
                        await session.exec(f"({flood}) & wait", timeout=0.5)
                    with contextlib.suppress(CoveError):
                        await session.env()
            assert (await sandbox.exec("echo fine")).stdout == "fine\n"


async def test_a_flood_of_the_snapshot_ends_no_session() -> None:
    async with AsyncSandbox.create() as sandbox, asyncio.timeout(60):
        for attempt in bounded_callbacks():
            session = await sandbox.create_session()
            await session.exec("x=kept; cat /dev/zero > $__cove/state 2> /dev/null &")
            with attempt, contextlib.suppress(CoveError):
                await session.start_process("true", keep=False)
            assert (await session.exec("kill $!; echo $x")).stdout == "kept\n"


async def test_a_session_with_more_exports_than_linux_passes_lives_on_and_says_so() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=kept; big=$(head -c 17000000 /dev/zero | tr '\\0' y); export big")
        for attempt in bounded_callbacks():
            with attempt:
                assert (await session.exec("echo $x ${#big}", timeout=60)).stdout == "kept 17000000\n"
                with pytest.raises(LimitExceeded, match="exported variables"):
                    await session.env()
                with pytest.raises(LimitExceeded, match="state"):
                    await session.start_process("true")
        await session.exec("unset big")
        assert "big" not in await session.env()
        assert (await (await session.start_process("echo $x")).output()).stdout == "kept\n"


@pytest.mark.parametrize("count", [5_000, pytest.param(50_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
async def test_a_session_with_many_variables_lives_on_with_them(count: int) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(f'for ((i = 1; i <= {count}; i++)); do export "v$i=$i"; done; other=1')
        for attempt in bounded_callbacks():
            with attempt:
                assert (await session.exec(f"echo $v{count}")).stdout == f"{count}\n"
                with contextlib.suppress(LimitExceeded):
                    environment = await session.env()
                    assert (environment[f"v{count}"], "other" in environment) == (str(count), False)
                process = await session.start_process(f"echo $v1 $v{count} $other")
                assert (await process.output()).stdout == f"1 {count} 1\n"
                assert (await session.exec("echo $v1", timeout=300)).stdout == "1\n"


async def test_a_shell_that_takes_seconds_to_list_its_variables_says_so_and_goes_on() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=kept; __cove_silent=xx")
        with pytest.raises(LimitExceeded, match="seconds"):
            await session.env()
        assert (await session.exec("export y=1; echo $x")).stdout == "kept\n"
        with pytest.raises(LimitExceeded, match="seconds"):
            await session.env()
        await session.exec(":")
        assert (await session.env())["y"] == "1"


async def test_a_deadline_counts_from_the_call_also_while_others_have_the_turn() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        first = asyncio.ensure_future(session.exec("read -t 100 < <(sleep 100)", timeout=1))
        await asyncio.sleep(0)  # it takes its turn
        second = await session.exec("touch ran", timeout=0.2)
        assert (second.outcome, second.exit_code, first.done()) == ("timed_out", 124, False)
        assert "nothing was started" in second.stderr
        assert (await first).timed_out
        assert (await session.exec("ls ran")).exit_code != 0
