"""How commands end: signals, timeouts, what they leave behind."""

import asyncio
import signal
import time

import pytest
from support.inside import commands_inside

from cove import AsyncSandbox
from cove.runtime.spawner import TIMEOUT_GRACE

pytestmark = pytest.mark.anyio

FATAL = [
    number
    for number in sorted(signal.valid_signals())
    if number
    not in {
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGURG,
        signal.SIGWINCH,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
    }
]


async def test_a_command_that_dies_by_a_signal_has_128_plus_its_number() -> None:
    async with AsyncSandbox.create() as sandbox:
        for number in FATAL:
            suicide = f"import os, signal; n = {int(number)}; n == 9 or signal.signal(n, 0); os.kill(os.getpid(), n)"
            result = await sandbox.exec(["python3", "-I", "-S", "-c", suicide])
            assert (result.outcome, result.exit_code, result.signal) == ("signaled", 128 + number, number), number
            assert not result.ok


async def test_a_shell_that_reports_its_childs_signal_has_exited() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("bash -c 'kill -9 $$'; exit $?")
    assert (result.outcome, result.exit_code, result.signal) == ("exited", 137, None)


TREE = """
trap '' TERM
echo partial
setsid bash -c 'trap "" TERM; while :; do sleep 1000; done' &
(setsid bash -c 'trap "" TERM HUP; (sleep 2000 &) ; sleep 3000' &)
python3 -c 'import os,time; os.fork() or (os.setsid(), os.fork() or time.sleep(4000)); time.sleep(5000)' &
nohup sleep 6000 > /dev/null 2>&1 &
echo started > /tmp/started
while :; do sleep 7000; done
"""


async def test_a_timeout_ends_the_whole_tree_and_gives_the_partial_output() -> None:
    async with AsyncSandbox.create() as sandbox:
        began = time.monotonic()
        result = await sandbox.exec(TREE, timeout=1.0)
        took = time.monotonic() - began
        assert (result.outcome, result.exit_code, result.timed_out, result.ok) == ("timed_out", 124, True, False)
        assert result.stdout == "partial\n"
        assert took >= 1.0
        assert (await sandbox.exec("cat /tmp/started")).stdout == "started\n"
        assert await commands_inside(sandbox) == []


async def test_a_command_that_heeds_term_is_not_made_to_wait_for_the_grace() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkfifo /tmp/fifo")
        result = await sandbox.exec("trap 'echo bye; exit 3' TERM; read < /tmp/fifo", timeout=0.3)
        assert (result.outcome, result.exit_code, result.stdout) == ("timed_out", 124, "bye\n")
        assert result.duration < 0.3 + TIMEOUT_GRACE


@pytest.mark.parametrize("timeout", [0, 0.0001])
async def test_a_timeout_of_nothing_ends_the_command_at_once(timeout: float) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("trap '' TERM; sleep 1000", timeout=timeout)
        assert (result.outcome, result.exit_code) == ("timed_out", 124)
        assert await commands_inside(sandbox) == []


async def test_a_command_that_ends_in_time_is_not_touched_by_its_timeout() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("echo x; exit 4", timeout=1000)
        assert (result.outcome, result.exit_code) == ("exited", 4)
        infinite = await sandbox.exec("echo x", timeout=float("inf"))
        assert infinite.ok


async def test_a_timeout_does_not_touch_what_earlier_calls_left_running() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("sleep 1234 &")
        await sandbox.exec("sleep 5678", timeout=0.1)
        assert await commands_inside(sandbox) == ["sleep 1234"]


async def test_many_timeouts_at_once_end_each_on_its_own() -> None:
    async with AsyncSandbox.create() as sandbox:
        calls = [sandbox.exec("trap '' TERM; sleep 1000 & sleep 1000", timeout=0.2) for _ in range(20)]
        quick = [sandbox.exec("echo ok") for _ in range(20)]
        results = await asyncio.gather(*calls, *quick)
        assert [result.outcome for result in results] == ["timed_out"] * 20 + ["exited"] * 20
        assert await commands_inside(sandbox) == []


@pytest.mark.parametrize(
    "command",
    ["sleep 1000 &", "(setsid sleep 1000 &)", "yes &", "yes >&2 &", "nohup sleep 1000 & disown", "exec 2>&-; yes &"],
)
async def test_a_background_child_does_not_delay_the_result(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(f"{command}\necho ${{!:-none}} > /tmp/pid; echo done")
        assert result.stdout.replace("y\n", "") == "done\n"
        assert result.duration < 1.0
        assert len(await commands_inside(sandbox)) == 1


async def test_a_background_child_lives_on_and_its_words_are_dropped() -> None:
    async with AsyncSandbox.create() as sandbox:
        child = "trap 'echo pipe > /tmp/pipe' PIPE; read < /tmp/go; seq 1 200000; echo $? > /tmp/status"
        await sandbox.exec(f"mkfifo /tmp/go; ({child}) &")
        wait = "until [ -s /tmp/status ]; do :; done; cat /tmp/status"
        result = await sandbox.exec(f"echo go > /tmp/go; {wait}", timeout=60)
        assert result.stdout == "0\n"
        assert (await sandbox.exec("test -e /tmp/pipe")).exit_code == 1


async def test_an_endless_printer_never_appears_in_another_call() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("yes & yes >&2 &")
        for number in range(50):
            result = await sandbox.exec(f"echo {number}; echo {number} >&2")
            assert (result.stdout, result.stderr) == (f"{number}\n", f"{number}\n")
        assert await commands_inside(sandbox) == ["yes", "yes"]


async def test_what_the_background_child_printed_before_the_end_belongs_to_the_result() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("mkfifo /tmp/f; (echo child; echo > /tmp/f; sleep 99) & read < /tmp/f; echo parent")
    assert result.stdout == "child\nparent\n"


async def test_a_launcher_is_used_again_once_its_background_children_are_gone() -> None:
    async with AsyncSandbox.create() as sandbox:
        for _ in range(30):
            await sandbox.exec("sleep 0.01 &")
        await sandbox.exec("while pgrep -x sleep > /tmp/still; do :; done", timeout=30)
        result = await sandbox.exec("ls -d /proc/[0-9]* | wc -l")
        assert int(result.stdout) < 20
