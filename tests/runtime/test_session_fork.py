"""Copies of sessions: independent of the one they were made from, whatever happens to either."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cancellation import cancel_after
from support.inside import commands_inside

from cove import AsyncSandbox, LimitExceeded, Outcome, SessionTerminated
from cove.core.session_script import quote
from cove.runtime import sessions

pytestmark = pytest.mark.anyio

STATE = "declare -p 2>/dev/null | grep '^declare .. v_'; declare -f; alias; set +o; shopt -p; umask; pwd; dirs"
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


async def test_any_state_is_the_same_in_the_copy() -> None:
    async with AsyncSandbox.create() as sandbox:

        @settings(max_examples=15)
        @given(st.dictionaries(st.from_regex(r"\Av_[a-z]{1,6}\Z"), VALUES, max_size=5), st.lists(VALUES, max_size=4))
        def check(variables: dict[str, str], words: list[str]) -> None:
            lines = [f"{name}={quote(text)}" for name, text in variables.items()]
            lines.append(f"v_list=({' '.join(map(quote, words))})")
            asyncio.run_coroutine_threadsafe(compare("\n".join(lines)), loop).result(60)

        async def compare(script: str) -> None:
            session = await sandbox.create_session()
            await session.exec(script)
            copy = await session.fork()
            assert (await copy.exec(STATE)).stdout == (await session.exec(STATE)).stdout
            await asyncio.gather(session.delete(), copy.delete())

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(check)


async def test_a_copy_is_another_shell_with_commands_timeouts_and_kills_of_its_own() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1; sleep 1000 & ")
        copy = await session.fork()
        assert (await copy.exec("jobs; echo $x")).stdout == "1\n"
        shells = [(await each.exec("echo $$ $BASHPID")).stdout.split() for each in (session, copy)]
        assert shells[0] != shells[1]
        assert [own == same for own, same in shells] == [True, True]
        assert (await copy.exec("sleep 2000", timeout=0.2)).outcome is Outcome.TIMED_OUT
        assert (await session.exec("echo $x")).stdout == "1\n"
        with pytest.raises(SessionTerminated):
            await copy.exec("kill -9 $$")
        assert (await session.exec("echo $x; jobs -r | wc -l")).stdout == "1\n1\n"
        await copy.delete()
        assert [each for each in await commands_inside(sandbox) if "sleep" in each] == ["sleep 1000"]


async def test_a_copy_is_restored_without_the_traps_of_its_parent() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1; trap 'echo trapped' EXIT USR1")
        copy = await session.fork()
        assert (await copy.exec("exec sleep 1000", timeout=0.1)).session_restarted
        assert (await copy.exec("echo $x; trap -p EXIT USR1")).stdout == "1\n"
        assert "trapped" in (await session.exec("trap -p EXIT")).stdout


async def test_a_fork_waits_for_the_command_that_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkfifo /tmp/gate")
        session = await sandbox.create_session()
        running = asyncio.create_task(session.exec("read line < /tmp/gate; x=$line"))
        fork = asyncio.create_task(session.fork())
        await sandbox.exec("true")
        assert not fork.done()
        await sandbox.exec("echo after > /tmp/gate")
        await running
        assert (await (await fork).exec("echo $x")).stdout == "after\n"


async def test_what_cannot_be_forked_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 2)
    async with AsyncSandbox.create() as sandbox:
        large, ended = await sandbox.create_session(), await sandbox.create_session()
        with pytest.raises(LimitExceeded, match="2 sessions"):
            await large.fork()
        with pytest.raises(SessionTerminated):
            await ended.exec("exit 3")
        with pytest.raises(LimitExceeded):
            await ended.fork()
        await ended.delete()
        await large.exec("x=$(head -c 17000000 /dev/zero | tr '\\0' x)")
        with pytest.raises(LimitExceeded, match="16 MiB"):
            await large.fork()
        await large.exec("unset x")
        assert (await (await large.fork()).exec("echo ${x-unset}")).stdout == "unset\n"


async def test_a_session_that_has_ended_says_so() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        with pytest.raises(SessionTerminated):
            await session.exec("exit 3")
        with pytest.raises(SessionTerminated, match="exit code 3"):
            await session.fork()
        assert len(await sandbox.list_sessions()) == 1


async def test_a_fork_that_is_cancelled_anywhere_leaves_no_copy() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        turns, was_running = 0, True
        while was_running:
            was_running = await cancel_after(turns, session.fork())
            turns += 1 + turns // 8
            if was_running:
                assert len(await sandbox.list_sessions()) == 1
                assert (await session.exec("echo $x; pgrep -c bash")).stdout == "1\n1\n"
        assert turns > 3


async def test_a_state_that_code_inside_has_forged_ends_no_more_than_the_copy() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("x=1")
        forging = asyncio.create_task(
            sandbox.exec("for d in /run/cove/shell/*/state; do printf 'garbage\\0' > $d; done", timeout=5)
        )
        await asyncio.gather(forging, session.fork(), return_exceptions=True)
        assert (await session.exec("echo $x")).stdout == "1\n"
