"""Processes that start from a session's state."""

import asyncio
import textwrap

import pytest
from support.inside import commands_inside

from cove import AsyncSandbox, ProcessAlreadyExists, ValidationFailed

pytestmark = pytest.mark.anyio


async def test_a_process_starts_from_everything_the_session_has_but_its_traps() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("plain=1; export exported=2; arr=(a 'b c'); declare -A map=([k]='v w'); readonly fixed=3")
        await session.exec(
            "f() { cat <<E\nfunction $1\nE\n}; export -f f; alias a='echo alias'; shopt -s nullglob extglob"
        )
        await session.exec(
            "set -f -o pipefail; umask 027; set -- x 'y z'; cd /usr; trap 'echo trapped' EXIT USR1; unset HOME"
        )
        process = await session.start_process(
            'echo $plain $exported "${arr[1]}" ${map[k]} $fixed $# "$2" $PWD ${HOME-unset}; f 1; bash -c "f 2"; a; '
            "umask; shopt -q nullglob && echo nullglob; echo $-; trap; false | true; echo $? $0"
        )
        result = await process.output()
        assert result.stderr == ""
        assert result.stdout.splitlines() == [
            "1 2 b c v w 3 2 y z /usr unset",
            "function 1",
            "function 2",
            "alias",
            "0027",
            "nullglob",
            "fhBc",
            "1 bash",
        ]


async def test_a_process_changes_nothing_in_the_session() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1; cd /usr; (exit 3)")
        process = await session.start_process(
            "x=2; cd /; f() { :; }; set -f; echo $?; exit 9", env={"E": "e"}, cwd="/tmp"
        )
        assert (await process.wait()).exit_code == 9
        assert (await session.exec("echo $? $x $PWD ${E-unset} ${-//[^f]/}; declare -F f")).stdout == "3 1 /usr unset\n"


async def test_functions_named_like_builtins_and_aliases_do_not_disturb_the_start() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        names = "declare set eval exec cd umask shopt alias export read printf trap"
        await session.exec(f'x=1; for n in {names}; do builtin eval "$n() {{ echo mine; }}"; done; alias builtin=exit')
        assert (await (await session.start_process("echo $x; set; cd")).output()).stdout == "1\nmine\nmine\n"
        assert (await (await session.start_process(["echo", "a b", "$x"])).output()).stdout == "a b $x\n"


@pytest.mark.parametrize(
    "options", ["set -e", "set -eu", "set -x", "set -v", "set -o posix", "set -a", "set -k", "IFS=/"]
)
async def test_options_hold_for_the_process_and_not_for_its_start(options: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(f"f-x() {{ :; }}; x=1; {options}")
        result = await (await session.start_process("\\echo $x")).output()
        assert result.stdout == "1\n"
        assert "cove" not in result.stderr
        failing = await (await session.start_process("false; \\echo on")).output()
        assert failing.stdout == ("" if "-e" in options else "on\n")


async def test_a_missing_program_or_directory_is_a_process_that_ended() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        result = await (await session.start_process("true", cwd="/nonexistent")).output()
        assert (result.exit_code, "/nonexistent" in result.stderr) == (1, True)
        assert (await (await session.start_process(["nope"])).wait()).exit_code == 127
        await session.exec("mkdir gone && cd gone && rmdir ../gone")
        assert (await (await session.start_process("true")).wait()).exit_code == 1


async def test_processes_are_seen_from_everywhere_and_end_with_their_session() -> None:
    async with AsyncSandbox.create() as sandbox:
        one = await sandbox.create_session()
        two = await sandbox.create_session()
        await one.start_process("sleep 1000", id="a")
        await one.start_process("trap '' TERM; setsid sleep 1001 & sleep 1002", id="b")
        with pytest.raises(ProcessAlreadyExists):
            await two.start_process("true", id="a")
        assert [(each.id, each.session_id) for each in await sandbox.list_processes()] == [("a", one.id), ("b", one.id)]
        await sandbox.kill_process("a")
        assert (await (await sandbox.get_process("a")).wait(10)).exit_code == 143
        await one.delete()
        assert (await (await sandbox.get_process("b")).wait(10)).outcome == "killed"
        assert await commands_inside(sandbox) == ["/bin/bash -s"]


async def test_the_session_is_free_as_soon_as_the_process_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        process = await session.start_process("cat", stdin=True)
        assert (await session.exec("echo free")).stdout == "free\n"
        await process.write_stdin(b"input")
        await process.close_stdin()
        assert (await process.output()).stdout == "input"
        limited = await session.start_process("sleep 1000", timeout=0.1)
        assert (await limited.wait(10)).outcome == "timed_out"


async def test_a_large_state_and_a_large_command_are_carried_over() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("big=$(head -c 1000000 /dev/zero | tr '\\0' x); for i in {1..500}; do declare v$i=$i; done")
        command = "echo ${#big} $v500 # " + "y" * 300_000
        assert (await (await session.start_process(command)).output()).stdout == "1000000 500\n"


async def test_many_processes_at_once_each_get_the_state_of_their_turn() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()

        async def one(number: int) -> str:
            _, process = await asyncio.gather(session.exec(f"n={number}"), session.start_process("echo $n"))
            return (await process.output()).stdout

        assert await asyncio.gather(*(one(n) for n in range(10))) == [f"{n}\n" for n in range(10)]


async def test_a_process_survives_a_session_whose_shell_was_replaced() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1; sleep 1000 &")
        process = await session.start_process("sleep 1001")
        script = textwrap.dedent("""
            trap '' INT TERM RTMAX-7
            while :; do :; done
        """)
        result = await session.exec(script, timeout=0.1)
        assert result.session_restarted
        assert {"sleep 1000", "sleep 1001"} < set(await commands_inside(sandbox))
        assert (await (await session.start_process("echo $x")).output()).stdout == "1\n"
        await session.delete()
        assert (await process.wait(10)).outcome == "killed"
        assert await commands_inside(sandbox) == []


CLOSES_IN_GOOD_ORDER = """import os, signal, sys, time
def close(number, frame):
    os.write(1, b"closing\\n")
    time.sleep(0.3)
    os.write(1, b"closed\\n")
    sys.exit(7)
signal.signal(signal.SIGTERM, close)
os.write(1, b"ready\\n")
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("padding", [0, 300_000], ids=["short", "long"])
@pytest.mark.parametrize("words", [False, True], ids=["line", "words"])
@pytest.mark.parametrize("from_session", [True, False], ids=["session", "sandbox"])
async def test_a_program_told_to_end_closes_in_good_order(from_session: bool, words: bool, padding: int) -> None:
    if words and padding:
        pytest.skip("one word is never that long")
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await sandbox.files.write("/tmp/program.py", CLOSES_IN_GOOD_ORDER)
        await session.exec("f() { :; }; set -o pipefail")
        command = ["python3", "/tmp/program.py"] if words else f": {'x' * padding}\npython3 /tmp/program.py"
        process = await (session if from_session else sandbox).start_process(command)
        await process.wait_for_log("ready", timeout=20)
        await process.terminate(grace=20)
        result = await process.output()
        assert result.stdout == "ready\nclosing\nclosed\n"
        assert (result.outcome, result.exit_code) == ("exited", 7)


async def test_a_program_is_the_leader_of_its_process_as_with_bash() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        process = await session.start_process("sleep 1000")
        assert await commands_inside(sandbox) == ["/bin/bash -s", "sleep 1000"]
        await process.kill()


async def test_a_process_gets_the_sessions_own_bash_env_and_none_otherwise() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        ask = "echo ${BASH_ENV-none} $0 $#; ls /proc/$$/fd | grep -c 6"
        assert (await (await session.start_process(ask)).output()).stdout == "none bash 0\n0\n"
        await session.exec("export BASH_ENV=/tmp/own; set -- a b")
        assert (await (await session.start_process(ask)).output()).stdout == "/tmp/own bash 2\n0\n"


async def test_a_read_only_variable_is_not_changed_for_a_process() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("readonly fixed=1; readonly IFS=x")
        with pytest.raises(ValidationFailed):
            await session.start_process("true", env={"fixed": "2"})
        long = "echo $fixed # " + "y" * 300_000
        assert (await (await session.start_process(long, env={"A": "b"})).output()).stdout == "1\n"
