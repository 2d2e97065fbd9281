"""A timeout interrupts the command, not the session."""

import asyncio

import pytest
from support.inside import commands_inside

from cove import AsyncSandbox, ExecResult, Limits
from cove.api import Session

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

SETUP = "x=1; f() { echo function; }; alias a='echo alias'; cd /tmp; mkfifo /tmp/fifo 2>/dev/null; set -- p q"
STATE = "echo $x $PWD $*; f; a"
EXPECTED = "1 /tmp p q\nfunction\nalias\n"

KEEPS = [
    "sleep 100",
    "sleep 100 | cat | cat",
    "while :; do :; done",
    "for ((;;)); do true; done",
    "sleep 200 & wait",
    "g() { sleep 100; }; g",
    "g() { while :; do h; done; }; h() { for i in 1 2 3; do :; done; }; g",
    "(sleep 100)",
    "sleep 100; touch /tmp/ran",
    "while :; do sleep 100; touch /tmp/ran; done; touch /tmp/ran",
    "g() { sleep 100; touch /tmp/ran; }; g; touch /tmp/ran",
    "if sleep 100; then touch /tmp/ran; else touch /tmp/ran; fi; touch /tmp/ran",
    "sleep 100 || touch /tmp/ran && touch /tmp/ran",
    "eval 'sleep 100; touch /tmp/ran'; touch /tmp/ran",
    "trap 'sleep 100' USR1; kill -USR1 $$; touch /tmp/ran",
    "python3 -c 'import signal, time; signal.signal(2, 1); signal.signal(15, 1); time.sleep(100)'; touch /tmp/ran",
    "yes | head -c 100000; sleep 100",
    "y=$(sleep 100)",
    "y=`sleep 100; touch /tmp/ran`",
    "y=$(setsid sleep 100 & wait); touch /tmp/ran",
    "echo $(sleep 100 | cat) $(touch /tmp/ran)",
    "echo $(echo $(sleep 100)); touch /tmp/ran",
    "case $(sleep 100) in *) touch /tmp/ran;; esac",
    "g() { local y=$(while :; do :; done); touch /tmp/ran; }; g",
    "[[ $(sleep 100) ]] || touch /tmp/ran",
]

MAY_RESTART = [
    "set -e; sleep 100; touch /tmp/ran",
    "for i in $(sleep 100); do touch /tmp/ran; done; touch /tmp/ran",
    "read y < /tmp/fifo; touch /tmp/ran",
    "trap 'echo caught' INT TERM; while :; do sleep 100; done",
    "trap '' INT TERM; sleep 100; touch /tmp/ran",
    "trap '' INT TERM RTMAX-7; while :; do :; done; touch /tmp/ran",
    "trap - RTMAX-7; while :; do :; done; touch /tmp/ran",
    "g() { trap 'echo in' INT; sleep 100; }; g; touch /tmp/ran",
    "cat < /tmp/fifo; touch /tmp/ran",
    "exec 3< /tmp/fifo; touch /tmp/ran",
]


async def time_out(session: Session, command: str) -> ExecResult:
    result = await session.exec(command, timeout=0.1)
    assert (result.outcome, result.exit_code) == ("timed_out", 124)
    return result


@pytest.mark.parametrize("command", KEEPS)
async def test_the_session_keeps_its_shell_and_state_after_a_timeout_of(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(SETUP)
        shell = (await session.exec("echo $$")).stdout
        assert not (await time_out(session, command)).session_restarted
        assert (await session.exec(STATE)).stdout == EXPECTED
        assert (await session.exec("echo $$; ls /tmp/ran")).stdout == shell
        assert await commands_inside(sandbox) == ["/bin/bash -s"]


@pytest.mark.parametrize("command", MAY_RESTART)
async def test_the_session_has_its_state_though_its_shell_may_be_new_after_a_timeout_of(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(SETUP)
        shell = (await session.exec("echo $$")).stdout
        result = await time_out(session, command)
        assert (await session.exec(STATE)).stdout == EXPECTED
        assert ((await session.exec("echo $$")).stdout != shell) == result.session_restarted
        assert result.restored_command == ("echo $$" if result.session_restarted else None)
        assert (await session.exec("ls /tmp/ran")).stdout == ""
        assert await commands_inside(sandbox) == ["/bin/bash -s"]


async def test_a_timeout_ends_the_background_jobs_of_its_command_and_no_earlier_ones() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("sleep 1001 & setsid sleep 1002 > /dev/null 2>&1 &")
        await session.exec("(sleep 1003 &)")
        result = await time_out(
            session, "sleep 2001 & setsid sleep 2002 & (sleep 2003 &); trap '' TERM; echo out; wait"
        )
        assert result.stdout == "out\n"
        left = [command for command in await commands_inside(sandbox) if "sleep" in command]
        assert sorted(left) == ["sleep 1001", "sleep 1002", "sleep 1003"]


async def test_what_an_earlier_background_job_starts_meanwhile_is_none_of_the_commands() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("(until [ -e go ]; do sleep 0.01; done; sleep 1001; :) &")
        assert (await session.exec("touch go; sleep 2001", timeout=0.5)).timed_out
        assert [command for command in await commands_inside(sandbox) if "sleep" in command] == ["sleep 1001"]


async def test_a_process_that_nobody_reaps_keeps_no_caller() -> None:
    program = "import os, time\nwhile True:\n    os.fork() or os._exit(0)\n    time.sleep(0.02)"
    async with AsyncSandbox.create() as sandbox, asyncio.timeout(30):
        session = await sandbox.create_session()
        await session.exec(f"x=kept; python3 -c '{program}' > /dev/null 2>&1 & sleep 0.1")
        call = asyncio.ensure_future(session.exec("sleep 100"))
        await asyncio.wait([call], timeout=0.3)
        call.cancel()
        assert (await session.exec("echo $x")).stdout == "kept\n"
        assert (await session.exec("sleep 100", timeout=0.3)).timed_out
        assert (await session.exec("echo $x")).stdout == "kept\n"


async def test_a_loop_that_substitutes_commands_costs_no_shell() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=kept")
        for _ in range(40):
            result = await session.exec("while :; do y=$(echo y); done", timeout=0.02)
            assert (result.outcome, result.session_restarted) == ("timed_out", False)
        assert (await session.exec("echo $x")).stdout == "kept\n"


@pytest.mark.parametrize("command", ["sleep 100", "trap '' INT TERM RTMAX-7; while true; do true; done"])
@pytest.mark.parametrize("define", [":() { touch /tmp/ran; }", "alias :='touch /tmp/ran'"])
async def test_a_timeout_runs_nothing_that_the_user_has_defined(define: str, command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(define)
        await time_out(session, command)
        assert (await session.exec("ls /tmp/ran")).stdout == ""


async def test_a_fork_bomb_ends_with_its_timeout() -> None:
    async with AsyncSandbox.create(limits=Limits(pids=100)) as sandbox:
        session = await sandbox.create_session()
        await time_out(session, ":() { : | : & }; :; sleep 100")
        assert await commands_inside(sandbox) == ["/bin/bash -s"]


async def test_sixty_timeouts_in_a_row_leave_the_session_as_it_was() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(SETUP)
        for number in range(60):
            command = ("while :; do :; done", "sleep 100 & wait", "sleep 100")[number % 3]
            result = await session.exec(command, timeout=0.01)
            assert (result.outcome, result.session_restarted) == ("timed_out", False)
        assert (await session.exec(STATE)).stdout == EXPECTED
        assert await commands_inside(sandbox) == ["/bin/bash -s"]


async def test_a_wait_after_a_timeout_waits() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        # `[[` is no builtin: the last one before the interruption is `wait`.
        await time_out(session, "sleep 0.01 & wait; while [[ 1 ]]; do [[ 1 ]]; done")
        assert (await session.exec("sleep 0.1 & wait; echo $?")).stdout == "0\n"


async def test_the_calls_timeout_comes_before_the_sessions() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(timeout=0.1)
        assert (await session.exec("sleep 100")).timed_out
        assert (await session.exec("sleep 0.3; echo done", timeout=60)).stdout == "done\n"
        patient = await sandbox.create_session(timeout=1000)
        assert (await patient.exec("sleep 100", timeout=0.1)).timed_out


async def test_what_a_call_changed_for_itself_is_undone_after_its_timeout() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("A=mine; cd /usr")
        for command in ("sleep 100", "trap '' INT TERM RTMAX-7; while :; do :; done"):
            result = await session.exec(command, timeout=0.1, cwd="/tmp", env={"A": "call", "B": "call"})
            assert result.timed_out
            assert (await session.exec("echo $A ${B-unset} $PWD")).stdout == "mine unset /usr\n"
            assert await session.cwd() == "/usr"
            assert "B" not in await session.env()


@pytest.mark.parametrize("command", ["sleep 100", "f() { sleep 100; }; f", "f() { while :; do :; done; }; f"])
@pytest.mark.parametrize(
    "setting", ["trap 'y=1' DEBUG", "set -T; trap 'y=1' DEBUG", "set -E; trap 'y=1' DEBUG", "shopt -s extdebug; set -E"]
)
async def test_a_timeout_keeps_the_debug_trap_and_the_options_that_go_with_it(setting: str, command: str) -> None:
    show = "trap -p DEBUG; echo $-; shopt extdebug"
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(setting)
        before = await session.exec(show)
        for _ in range(2):
            assert not (await time_out(session, command)).session_restarted
            assert (await session.exec(show)).stdout == before.stdout


async def test_a_debug_trap_of_the_interrupted_command_itself_is_kept() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await time_out(session, "trap 'y=1' DEBUG; sleep 100")
        assert (await session.exec("trap -p DEBUG")).stdout == "trap -- 'y=1' DEBUG\n"


STARTS_MORE = [
    "echo $(sleep 100 | cat) $(touch /tmp/ran)",
    "echo $(sleep 100 >/dev/null) $(touch /tmp/ran)",
    "y=$(exec sleep 100 >/dev/null)$(touch /tmp/ran)",
    "[[ $(sleep 100) == $(touch /tmp/ran) ]]",
    "g() { echo $(exec sleep 100 >/dev/null) $(touch /tmp/ran); touch /tmp/ran; }; g; touch /tmp/ran",
    "(sleep 100; touch /tmp/ran); touch /tmp/ran",
    "bash -c 'sleep 100; touch /tmp/ran'",
    "sleep 100 | (cat; touch /tmp/ran)",
]


# What bash is in the middle of when the time is up, and would do next.
UNDER_WAY = [
    "touch /tmp/ran $(sleep 100)",
    "x=lost touch /tmp/ran $(sleep 100)",
    "y=$(sleep 100) touch /tmp/ran",
    "echo $(sleep 100) >/tmp/ran",
    "$(sleep 100) >/tmp/ran",
    "printf x >/tmp/ran$(sleep 100)",
    "read x <<<$(sleep 100) >/tmp/ran",
    "x=$(sleep 100)",
    "export x=$(sleep 100)",
    "((x = $(sleep 100) + 1))",
    "cd $(trap '' INT TERM; sleep 100)",
    "cd $(sleep 100)",
    "for x in $(sleep 100) lost; do touch /tmp/ran; done",
    "case $(sleep 100) in *) touch /tmp/ran ;; esac",
    "eval 'touch /tmp/ran `sleep 100`'; touch /tmp/ran",
    "f() { while :; do touch /tmp/ran $(sleep 100); done; }; f; touch /tmp/ran",
    "set -e; touch /tmp/ran $(sleep 100)",
    "{ touch /tmp/ran $(sleep 100); } 3>/tmp/other >&3",
]


@pytest.mark.parametrize("command", UNDER_WAY)
async def test_a_command_whose_words_are_being_made_when_its_time_is_up_does_nothing(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=kept; PS4='trace '; ulimit -S -n 100; shopt -u promptvars")
        for _ in range(2):
            result = await time_out(session, command)
            assert (result.stderr, result.session_restarted) == ("", False)
            after = await session.exec("echo $x $PWD $PS4 $(ulimit -S -n); shopt promptvars || :; ls /tmp")
            assert after.stdout.split()[:6] == ["kept", "/workspace", "trace", "100", "promptvars", "off"]
            assert "ran" not in after.stdout


async def test_a_trace_of_the_users_goes_on_after_a_timeout() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("unset PS4; readonly z=1; set -x")
        await time_out(session, "touch /tmp/ran $(sleep 100)")
        assert (await session.exec("echo ${PS4-none} $-")).stderr.startswith("echo none ")


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
async def test_a_timed_out_command_starts_nothing_more_whatever_its_shape(rounds: int) -> None:
    async with AsyncSandbox.create() as sandbox:

        async def interrupt(command: str) -> None:
            session = await sandbox.create_session()
            await session.exec("x=kept")
            marked = command.replace("/tmp/ran", f"/tmp/ran.{session.id}")
            for _ in range(rounds):
                assert (await session.exec(marked, timeout=0.03)).timed_out
                assert (await session.exec(f"echo $x; ls /tmp/ran.{session.id}")).stdout == "kept\n", command

        await asyncio.gather(*(interrupt(command) for command in STARTS_MORE))


async def test_a_timeout_of_zero_is_over_at_once() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        assert (await session.exec("sleep 100", timeout=0)).timed_out
        assert (await session.exec("echo ok")).stdout == "ok\n"


async def test_a_session_deleted_while_a_timeout_is_handled_leaves_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        for pause in (0.0, 0.05, 0.3, 0.6, 0.8, 0.82):
            session = await sandbox.create_session()
            await session.exec("x=1")
            call = asyncio.ensure_future(session.exec("trap '' INT TERM RTMAX-7; while :; do :; done", timeout=0.05))
            await asyncio.wait([call], timeout=0.05 + pause)
            await session.delete()
            await asyncio.wait([call])
            call.exception()
            assert await commands_inside(sandbox) == []


async def test_directory_and_variables_can_be_asked_for_while_a_shell_is_replaced() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(cwd="/usr", env={"A": "1"})
        call = asyncio.ensure_future(session.exec("trap '' INT TERM RTMAX-7; while :; do :; done", timeout=0.1))
        while not call.done():
            assert (await session.cwd(), (await session.env())["A"]) == ("/usr", "1")
            await asyncio.sleep(0)
        assert (await call).session_restarted
        assert (await session.exec("pwd")).stdout == "/usr\n"


async def test_a_shell_that_is_replaced_twice_says_both_times_as_of_which_command() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("a=1")
        await asyncio.sleep(0.1)  # a snapshot is taken when the session is idle, and not again before the next one
        await session.exec("a=2")
        for _ in range(2):
            result = await session.exec("trap '' INT TERM RTMAX-7; while :; do :; done", timeout=0.2)
            assert result.session_restarted
            await asyncio.sleep(0.1)
        assert result.restored_command == f"a={(await session.exec('echo $a')).stdout.strip()}"


async def test_a_session_that_was_interrupted_and_waits_is_kept_as_it_is() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1", timeout=60)
        for number in range(2, 5):
            await session.exec(f"x={number}")
            assert (await session.exec("sleep 100", timeout=0.05)).timed_out
            await sandbox.restart()
            result = await session.exec("echo $x")
            assert (result.stdout, result.session_restarted) == (f"{number}\n", False)
