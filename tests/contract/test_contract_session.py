"""Sessions, whatever way the sandbox is reached."""

import asyncio

import pytest
from support.inside import commands_inside
from support.serving import MakeSandbox

from cove import (
    FileNotFound,
    Outcome,
    SessionAlreadyExists,
    SessionNotFound,
    SessionStatus,
    SessionTerminated,
    ValidationFailed,
)

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20
WAITS = "touch /tmp/started; until [ -e /tmp/go ]; do sleep 0.01; done"
STARTED = "until [ -e /tmp/started ]; do sleep 0.01; done"


async def test_what_one_command_leaves_the_next_one_finds(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("plain=1; export exported=2; arr=(a 'b c'); f() { echo function; }; alias a='echo alias'")
        await session.exec("set -- x 'y z'; umask 027; shopt -s nullglob; pushd /tmp > /dev/null; false")
        result = await session.exec('echo $? $plain ${arr[1]} $# "$2"; umask; f; a; dirs; shopt -q nullglob && echo on')
        assert result.stdout == "1 1 b c 2 y z\n0027\nfunction\nalias\n/tmp /workspace\non\n"
        assert result.session_id == session.id


async def test_sessions_share_files_and_processes_and_nothing_else(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(env={"S": "sandbox"}) as sandbox:
        one = await sandbox.create_session(env={"A": "one"})
        two = await sandbox.create_session(env={"A": "two", "S": None}, cwd="/tmp")
        await one.exec("cd /usr; f() { :; }; echo shared > /tmp/file")
        assert (await two.exec("echo $A ${S-unset}; pwd; type f; cat file")).stdout == "two unset\n/tmp\nshared\n"
        assert (await sandbox.exec("echo ${A-unset} $S; pwd")).stdout == "unset sandbox\n/workspace\n"
        process = await one.start_process("sleep 1000", id="p")
        assert (await two.exec(f"kill {process.pid}")).exit_code == 0
        assert (await process.wait()).exit_code == 143


async def test_ids_are_checked_and_taken_once(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.create_session(id="A-z_0.9")
        with pytest.raises(SessionAlreadyExists):
            await sandbox.create_session(id="A-z_0.9")
        for bad in ("", ".", "a..b", "a/b", "ü", "x" * 129):
            with pytest.raises(ValidationFailed):
                await sandbox.create_session(id=bad)
        for call in (sandbox.get_session, sandbox.delete_session):
            with pytest.raises(SessionNotFound):
                await call("unknown")
        made = await asyncio.gather(*(sandbox.create_session(id="same") for _ in range(8)), return_exceptions=True)
        assert sum(isinstance(each, SessionAlreadyExists) for each in made) == 7


async def test_sessions_are_listed_with_their_facts(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        one = await sandbox.create_session(id="one", cwd="/tmp")
        await sandbox.create_session(id="two")
        await one.exec("cd /usr")
        first, second = await sandbox.list_sessions()
        assert (first.id, first.cwd, first.status, first.exit_code) == ("one", "/usr", SessionStatus.RUNNING, None)
        assert (second.id, second.cwd) == ("two", "/workspace")
        assert first.created_at < second.created_at
        await sandbox.delete_session("one")
        assert [info.id for info in await sandbox.list_sessions()] == ["two"]


async def test_commands_of_one_session_run_in_the_order_they_came(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("n=0")
        first = asyncio.create_task(session.exec(f"{WAITS}; echo $((n++))"))
        await sandbox.exec(STARTED, timeout=20)
        queued = [asyncio.create_task(session.exec("echo $((n++))")) for _ in range(20)]
        await sandbox.exec("touch /tmp/go")
        others = await asyncio.gather(*queued)
        assert (await first).stdout == "0\n"
        assert sorted(int(result.stdout) for result in others) == list(range(1, 21))


async def test_different_sessions_run_in_parallel(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        sessions = [await sandbox.create_session() for _ in range(8)]
        await sandbox.exec("mkdir /tmp/meeting")
        meet = "touch /tmp/meeting/$$; until [ $(ls /tmp/meeting | wc -l) = 8 ]; do sleep 0.02; done"
        results = await asyncio.gather(*(session.exec(meet, timeout=60) for session in sessions))
        assert all(result.ok for result in results)


async def test_a_cancelled_callers_queued_command_does_not_run(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        running = asyncio.create_task(session.exec(WAITS))
        await sandbox.exec(STARTED, timeout=20)
        queued = asyncio.create_task(session.exec("touch /tmp/ran"))
        await asyncio.sleep(0.1)  # it is in the queue by now, or at least under way
        queued.cancel()
        await asyncio.wait([queued])
        await sandbox.exec("touch /tmp/go")
        await running
        assert (await session.exec("ls /tmp/ran")).exit_code == 2


async def test_a_cancelled_command_is_interrupted_and_the_session_goes_on(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=kept")
        running = asyncio.create_task(session.exec("touch /tmp/started; sleep 1000"))
        await sandbox.exec("until [ -e /tmp/started ]; do sleep 0.01; done", timeout=20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await session.exec("echo $x", timeout=20)).stdout == "kept\n"
        assert not [command for command in await commands_inside(sandbox) if "sleep" in command]


async def test_what_holds_for_one_call_is_gone_after_it(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session(env={"A": "session"})
        result = await session.exec("pwd; echo $A $B; A=changed; cd /; false", cwd="/tmp", env={"A": "call", "B": "b"})
        assert (result.stdout, result.exit_code) == ("/tmp\ncall b\n", 1)
        assert (await session.exec("pwd; echo $A ${B-unset}")).stdout == "/workspace\nsession unset\n"
        missing = await session.exec("touch /tmp/ran", cwd="/no/such")
        assert missing.exit_code == 1
        assert "/no/such" in missing.stderr


async def test_a_readonly_variable_is_refused_for_one_call(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("readonly R=1")
        with pytest.raises(ValidationFailed, match="R"):
            await session.exec("echo ran", env={"R": "2"})
        assert (await session.exec("echo $R")).stdout == "1\n"


async def test_env_is_set_any_number_of_times_and_read_back(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        for value in ("", "a b", "new\nline", "'\"$`", "ünï \udcff", "x" * 50_000):
            await session.set_env({"A": value, "B": "b"})
            env = await session.env()
            assert (env["A"], env["B"]) == (value, "b")
            expected = value.encode("utf-8", "surrogateescape")
            assert (await session.exec('printf %s "$A"')).stdout_bytes == expected
        await session.set_env({"A": None})
        assert "A" not in await session.env()
        for wrong in ({"1A": "x"}, {"A": 1}, {"A": b"x"}, ["A"]):
            with pytest.raises(ValidationFailed):
                await session.set_env(wrong)  # type: ignore[arg-type]  # on purpose


async def test_directory_and_environment_answer_at_once_while_a_command_runs(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("cd /tmp; export A=1")
        running = asyncio.create_task(session.exec("cd /usr; touch /tmp/started; sleep 0.5"))
        await sandbox.exec("until [ -e /tmp/started ]; do sleep 0.01; done", timeout=20)
        assert (await session.cwd(), (await session.env())["A"]) == ("/tmp", "1")
        assert not running.done()
        await running
        assert await session.cwd() == "/usr"


COMMANDS: list[tuple[str | list[str], int, str]] = [
    ("", 0, ""),
    ("# comment", 0, ""),
    ("cat <<E\nhere\nE", 0, "here\n"),
    ("echo 'unterminated", 2, ""),
    ("echo a\\", 0, "a\\\n"),
    ("sleep 1000 & echo b", 0, "b\n"),
    ("set -x; echo c; set +x", 0, "c\n"),
    ("read x; echo $?", 0, "1\n"),
    (["printf", "%s|", "a b", "*"], 0, "a b|*|"),
]


async def test_every_kind_of_command_completes(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        for command, exit_code, stdout in COMMANDS:
            result = await session.exec(command, timeout=20)
            assert (result.command, result.exit_code, result.stdout) == (command, exit_code, stdout)


async def test_input_output_and_commands_of_any_bytes_and_size(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        data = bytes(range(256)) * 4096
        assert (await session.exec("cat", stdin=data)).stdout_bytes == data
        result = await session.exec("#" + "x" * MEGABYTE + "\nprintf '\\xff\\0' >&2; echo after")
        assert (result.stdout, result.stderr_bytes) == ("after\n", b"\xff\0")
        limited = await session.exec("seq 100000", max_output=100)
        assert limited.truncated
        assert limited.stdout.endswith("100000\n")


async def test_exit_ends_the_session_and_its_id_can_be_taken_again(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session(id="s")
        with pytest.raises(SessionTerminated) as caught:
            await session.exec("echo words; exit 5")
        assert (caught.value.exit_code, caught.value.output) == (5, "words\n")
        with pytest.raises(SessionTerminated):
            await session.exec("echo more")
        (info,) = await sandbox.list_sessions()
        assert (info.status, info.exit_code) == (SessionStatus.TERMINATED, 5)
        again = await sandbox.create_session(id="s")
        assert (await again.exec("echo new")).stdout == "new\n"
        assert (await sandbox.exec("echo fine")).stdout == "fine\n"


async def test_a_timeout_interrupts_the_command_and_keeps_the_state(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session(timeout=0.3)
        await session.exec("x=1; f() { echo function; }; cd /tmp")
        for command in ("echo partly; sleep 100", "echo partly; while :; do :; done"):
            result = await session.exec(command)
            assert (result.outcome, result.exit_code, result.stdout) == (Outcome.TIMED_OUT, 124, "partly\n")
            assert not result.session_restarted
        assert (await session.exec("sleep 0.6; echo $x $PWD; f", timeout=20)).stdout == "1 /tmp\nfunction\n"


async def test_a_shell_that_was_replaced_has_its_state_and_the_result_says_so(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=kept")
        result = await session.exec("trap '' INT TERM RTMAX-7; while :; do :; done", timeout=0.3)
        assert (result.timed_out, result.session_restarted, result.restored_command) == (True, True, "x=kept")
        assert (await session.exec("echo $x")).stdout == "kept\n"


async def test_a_process_starts_from_the_sessions_state_and_changes_nothing(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("plain=1; f() { echo function; }; cd /tmp; set -- x y")
        process = await session.start_process("echo $plain $PWD $*; f; plain=2; cd /", env={"E": "e"})
        assert (await process.output()).stdout == "1 /tmp x y\nfunction\n"
        assert process.session_id == session.id
        assert (await session.exec("echo $plain $PWD ${E-unset}")).stdout == "1 /tmp unset\n"


async def test_deleting_a_session_ends_everything_it_started(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("sleep 1000 & setsid sleep 1000 &")
        process = await session.start_process("sleep 1000", id="p")
        running = asyncio.create_task(session.exec("touch /tmp/started; sleep 1000"))
        await sandbox.exec("until [ -e /tmp/started ]; do sleep 0.01; done", timeout=20)
        await session.delete()
        with pytest.raises(SessionTerminated):
            await running
        assert (await process.wait()).outcome is Outcome.KILLED
        assert await commands_inside(sandbox) == []
        await session.delete()
        with pytest.raises(SessionNotFound):
            await session.exec("true")


async def test_files_of_a_session_start_at_its_directory(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec("mkdir -p deep; cd deep")
        await session.files.write("name \udcff", b"content")
        assert await sandbox.files.read("deep/name \udcff") == b"content"
        assert [info.path for info in await session.files.list()] == ["/workspace/deep/name \udcff"]
        with pytest.raises(FileNotFound):
            await session.files.read("deep/name")
        assert await session.files.glob("*") == ["name \udcff"]


async def test_a_fork_is_a_session_with_the_same_state(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        session = await sandbox.create_session()
        await session.exec(
            "x=1; export e=2; arr=(a 'b c'); f() { echo function; }; alias a='echo alias'; cd /usr; false"
        )
        await session.exec("set -- p 'q r'; umask 027; shopt -s nullglob; trap 'echo trapped' EXIT; (exit 5)")
        copy = await session.fork()
        result = await copy.exec('echo $? $x $e "${arr[1]}" "$2" $PWD; umask; f; a; shopt -q nullglob && echo on')
        assert result.stdout == "5 1 2 b c q r /usr\n0027\nfunction\nalias\non\n"
        assert (await copy.exec("trap -p EXIT; jobs")).stdout == ""
        await copy.exec("x=copy; cd /tmp")
        assert (await session.exec("echo $x $PWD")).stdout == "1 /usr\n"
        assert (await copy.cwd(), (await copy.env())["e"]) == ("/tmp", "2")
        assert [each.id for each in await sandbox.list_sessions()] == [session.id, copy.id]
        await session.delete()
        assert (await (await sandbox.get_session(copy.id)).exec("echo $x")).stdout == "copy\n"
        with pytest.raises(SessionNotFound):
            await session.fork()
