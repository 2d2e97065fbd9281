"""A session: what persists, what is isolated, what is shared."""

import asyncio
from pathlib import Path

import pytest
from support.inside import commands_inside

from cove import (
    AsyncSandbox,
    LimitExceeded,
    SessionAlreadyExists,
    SessionNotFound,
    SessionTerminated,
    ValidationFailed,
)
from cove.runtime import sessions

pytestmark = [pytest.mark.anyio, pytest.mark.pure]


async def test_environments_are_isolated_however_often_they_are_set() -> None:
    async with AsyncSandbox.create(env={"S": "sandbox"}) as sandbox:
        one = await sandbox.create_session(env={"A": "one"})
        two = await sandbox.create_session(env={"A": "two", "S": None})
        for number in range(20):
            await one.set_env({"A": f"one {number}", "B": "b"})
            await two.set_env({"A": f"two {number}", "B": None})
            assert (await one.exec("echo $A $B $S; env | grep -c ^A=")).stdout == f"one {number} b sandbox\n1\n"
            assert (await two.exec("echo $A ${B-unset} ${S-unset}")).stdout == f"two {number} unset unset\n"
        assert (await sandbox.exec("echo ${A-unset} $S")).stdout == "unset sandbox\n"
        await one.set_env({})


@pytest.mark.parametrize(
    "value", ["", " a  b ", "new\nline\n", "'\"$(id)`id`\\", "ünï \udcff\udcfe", "-n", "x" * 100_000]
)
async def test_any_value_of_a_variable_arrives_unchanged(value: str) -> None:
    data = value.encode("utf-8", "surrogateescape")
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(env={"A": value})
        assert (await session.exec('printf %s "$A"')).stdout_bytes == data
        await session.set_env({"B": value})
        assert (await session.exec('printf %s "$B"')).stdout_bytes == data
        assert (
            await session.exec('printf %s "$C"; env -0 | grep -zc ^C=', env={"C": value})
        ).stdout_bytes == data + b"1\n"
        env = await session.env()
        assert (env["A"], env["B"], env.get("C")) == (value, value, None)
        process = await session.start_process('printf %s "$B$D"', env={"D": value})
        assert (await process.output()).stdout_bytes == data * 2


async def test_directories_are_isolated_and_stay() -> None:
    async with AsyncSandbox.create() as sandbox:
        one = await sandbox.create_session()
        two = await sandbox.create_session(cwd="/tmp")
        await one.exec("mkdir -p deep/er && cd deep")
        await one.exec("cd er; pushd /usr >/dev/null; cd ..")
        assert (await one.exec("pwd; dirs -l; cd - ")).stdout == "/\n/ /workspace/deep/er\n/usr\n"
        assert (await two.exec("pwd")).stdout == "/tmp\n"
        assert (await one.cwd(), await two.cwd()) == ("/usr", "/tmp")
        assert (await sandbox.exec("pwd")).stdout == "/workspace\n"


async def test_everything_a_terminal_keeps_is_kept_from_command_to_command() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("plain=1; export exported=2; arr=(a 'b c'); declare -A map=([k]='v w'); declare -i int=3")
        await session.exec(
            "readonly fixed=4; declare -n ref=plain; set -- x 'y z'; umask 027; shopt -s nullglob; set -f"
        )
        await session.exec("f() { echo function $1; }; alias a='echo alias'; trap 'echo usr1' USR1; ulimit -S -n 100")
        await session.exec("echo 'sourced=5; g() { echo g; }' > lib.bash; . ./lib.bash; pushd /tmp > /dev/null; false")
        result = await session.exec(
            'echo $? $plain ${arr[1]} ${map[k]} $((int + 1)) $fixed $ref $# "$2" $sourced; '
            "umask; shopt -q nullglob && echo nullglob; echo $-; f x; a; g; kill -USR1 $$; ulimit -n; dirs; "
            "env | grep ^exp"
        )
        assert result.stdout.splitlines() == [
            "1 1 b c v w 4 4 1 2 y z 5",
            "0027",
            "nullglob",
            "fhBs",
            "function x",
            "alias",
            "g",
            "usr1",
            "100",
            "/tmp /workspace",
            "exported=2",
        ]


async def test_functions_and_aliases_of_one_session_are_unknown_in_another() -> None:
    async with AsyncSandbox.create() as sandbox:
        one, two = [await sandbox.create_session() for _ in range(2)]
        await one.exec("f() { echo one; }; alias a='echo one'")
        await two.exec("f() { echo two; }")
        assert (await one.exec("f; a")).stdout == "one\none\n"
        assert (await two.exec("f; a")).stdout == "two\n"
        assert (await sandbox.exec("f")).exit_code == 127


async def test_sessions_share_files_and_processes() -> None:
    async with AsyncSandbox.create() as sandbox:
        one, two = [await sandbox.create_session() for _ in range(2)]
        await one.exec("echo content > /tmp/file")
        assert (await two.exec("cat /tmp/file")).stdout == "content\n"
        await one.exec("sleep 1000 & echo $! > /tmp/pid")
        assert (await two.exec("kill $(cat /tmp/pid)")).exit_code == 0
        assert (await one.exec("wait $!; echo $?")).stdout == "143\n"
        process = await one.start_process("sleep 1000", id="p")
        assert [each.id for each in await sandbox.list_processes()] == ["p"]
        assert process.session_id == one.id
        assert (await two.exec(f"kill {process.pid}")).exit_code == 0
        assert (await process.wait(10)).exit_code == 143


async def test_two_sessions_at_once_never_mix_a_byte() -> None:
    async with AsyncSandbox.create() as sandbox:
        pair = [await sandbox.create_session() for _ in range(2)]
        command = "for i in {1..300}; do echo %s $i; echo %s $i >&2; done; head -c 300000 /dev/zero | tr '\\0' %s"

        async def run(at: int) -> None:
            name = "ab"[at]
            for _ in range(5):
                result = await pair[at].exec(command.replace("%s", name))
                lines = "".join(f"{name} {i}\n" for i in range(1, 301))
                assert result.stdout == lines + name * 300_000
                assert result.stderr == lines

        await asyncio.gather(run(0), run(1))


async def test_what_a_background_job_prints_later_is_in_no_other_result() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await sandbox.exec("mkfifo /tmp/go /tmp/done")
        first = await session.exec("echo first; (read < /tmp/go; echo late; echo late >&2; echo > /tmp/done) &")
        assert first.stdout == "first\n"
        result = await session.exec("echo > /tmp/go; read < /tmp/done; echo second")
        assert (result.stdout, result.stderr) == ("second\n", "")


async def test_requests_to_one_session_run_in_the_order_they_came() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        calls = [session.exec(f"sleep 0.00{9 - n % 10}; x+={n},; echo {n}") for n in range(30)]
        results = await asyncio.gather(*calls)
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(30)]
        assert (await session.exec("echo $x")).stdout == "".join(f"{n}," for n in range(30)) + "\n"


@pytest.mark.parametrize("change", ["pause", "restart"])
async def test_requests_that_wait_for_a_change_of_the_sandbox_run_in_the_order_they_came(change: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("n=0")
        changing = asyncio.ensure_future(sandbox.pause() if change == "pause" else sandbox.restart())
        await asyncio.sleep(0)
        waking = asyncio.ensure_future(sandbox.exec("true"))
        calls = [asyncio.ensure_future(session.exec("n=$((n+1)); echo $n")) for _ in range(5)]
        await changing
        calls += [asyncio.ensure_future(session.exec("n=$((n+1)); echo $n")) for _ in range(2)]
        results = await asyncio.gather(*calls)
        await waking
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(1, 8)]


async def test_different_sessions_run_in_parallel() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkfifo /tmp/a /tmp/b")
        one, two = [await sandbox.create_session() for _ in range(2)]
        meeting = asyncio.gather(
            one.exec("echo > /tmp/a; read < /tmp/b; echo met"), two.exec("read < /tmp/a; echo > /tmp/b; echo met")
        )
        assert [result.stdout for result in await asyncio.wait_for(meeting, 30)] == ["met\n", "met\n"]


async def test_deletion_removes_every_trace() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(id="s")
        await session.exec("sleep 1000 & setsid sleep 1001 > /dev/null & yes & (trap '' TERM HUP; sleep 1002) &")
        await session.start_process("trap '' TERM; sleep 1003 & sleep 1004")
        folder: Path = sandbox._place.shell  # type: ignore[attr-defined]
        assert [path.name for path in folder.iterdir()] == ["1"]
        await sandbox.delete_session("s")
        assert await commands_inside(sandbox) == []
        assert list(folder.iterdir()) == []
        assert await sandbox.list_sessions() == []
        for call in (
            session.exec("true"),
            session.cwd(),
            session.env(),
            session.set_env({}),
            session.start_process("x"),
        ):
            with pytest.raises(SessionNotFound):
                await call
        with pytest.raises(SessionNotFound):
            await sandbox.delete_session("s")
        await session.delete()
        assert (await (await sandbox.create_session(id="s")).exec("echo new")).stdout == "new\n"


async def test_a_session_whose_shell_exited_is_made_again_without_touching_the_sandbox() -> None:
    async with AsyncSandbox.create() as sandbox:
        other = await sandbox.create_session()
        await other.exec("x=other")
        session = await sandbox.create_session(id="s")
        with pytest.raises(SessionTerminated) as caught:
            await session.exec("echo so far; trap 'echo bye' EXIT; exit 7")
        assert (caught.value.exit_code, caught.value.output) == (7, "so far\nbye\n")
        for call in (session.exec("true"), session.cwd(), session.set_env({}), session.start_process("true")):
            with pytest.raises(SessionTerminated) as caught:
                await call
            assert caught.value.exit_code == 7
        (info,) = [info for info in await sandbox.list_sessions() if info.id == "s"]
        assert (info.status, info.exit_code) == ("terminated", 7)
        again = await sandbox.create_session(id="s")
        assert (await again.exec("echo again")).stdout == "again\n"
        assert (await other.exec("echo $x")).stdout == "other\n"


async def test_a_shell_killed_while_idle_frees_its_id() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(id="s")
        pid = (await session.exec("echo $$")).stdout
        await sandbox.exec(f"kill -9 {pid}; while kill -0 {pid.strip()} 2>/dev/null; do :; done")
        with pytest.raises(SessionTerminated):
            await session.exec("true")
        await sandbox.create_session(id="s")


async def test_what_holds_for_one_call_is_gone_after_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(env={"A": "mine"})
        await session.exec(
            "mkdir '/tmp/a b'; cd '/tmp/a b'; cd /tmp; arr=(1 '2 3'); declare -A map=([k]=v); declare -i n=5"
        )
        state = "pwd; echo $OLDPWD $A; declare -p arr map n; echo ${B-unset}"
        before = (await session.exec(state)).stdout
        env = {"A": "call", "B": "x", "arr": "word", "map": None, "n": "text"}
        for command in (
            "true",
            "false",
            "return 3",
            "cd /; A=z; B=z; unset arr n; declare -A map=()",
            "(exit 4)",
            'echo "',
        ):
            await session.exec(command, cwd="/usr", env=env)
            assert (await session.exec(state)).stdout == before, command
        result = await session.exec("pwd; echo $A $B $arr ${map-unset} $n; env | grep ^arr=", cwd="/usr", env=env)
        assert result.stdout == "/usr\ncall x word unset text\narr=word\n"
        assert (await session.exec("pwd", cwd="a b")).stdout == "/tmp/a b\n"


async def test_a_missing_directory_means_that_nothing_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(env={"A": "mine"})
        for cwd in ("/nonexistent", "nope/x y", "/etc/passwd", "/" + "x" * 5000):
            result = await session.exec("touch /tmp/ran", cwd=cwd, env={"A": "call"})
            assert result.exit_code == 1
            assert cwd in result.stderr
        assert (await session.exec("echo $A; pwd; ls /tmp")).stdout == "mine\n/workspace\n"


@pytest.mark.parametrize("declare", ["readonly R=1", "declare -r R", "declare -ra R=(1 2)", "set -eu; readonly R=1"])
async def test_a_readonly_variable_is_refused_and_nothing_runs(declare: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(env={"A": "mine"})
        await session.exec(declare)
        for value in ("2", None):
            env = {"A": "call", "R": value}
            for call in (
                session.exec("touch /tmp/ran", env=env, cwd="/usr"),
                session.set_env(env),
                session.start_process("touch /tmp/ran", env=env),
            ):
                with pytest.raises(ValidationFailed, match="R"):
                    await call
        assert (await session.exec("echo $A; pwd; ls /tmp")).stdout == "mine\n/workspace\n"


async def test_after_a_call_elsewhere_the_session_finds_its_directory_though_it_was_moved() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("mkdir one; cd one; mv ../one ../two")
        elsewhere = await session.exec("pwd", cwd="/")
        assert (elsewhere.stdout, elsewhere.stderr) == ("/\n", "")
        assert (await session.exec("pwd")).stdout == "/workspace/two\n"
        assert await session.cwd() == "/workspace/two"


@pytest.mark.parametrize("command", ["rm -r /workspace/one", "rm -r /workspace/one; sleep 100"])
async def test_a_session_whose_directory_is_gone_after_a_call_elsewhere_says_so(command: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec("mkdir one; cd one")
        result = await session.exec(command, cwd="/tmp", timeout=1)
        assert result.timed_out == ("sleep" in command)
        assert result.stderr == "cove: cannot go back to directory /workspace/one: the session is now in /tmp\n"
        assert (await session.exec("pwd")).stdout == "/tmp\n"
        assert await session.cwd() == "/tmp"


async def test_options_that_make_commands_fail_do_not_disturb_what_holds_for_one_call() -> None:
    async with AsyncSandbox.create() as sandbox:
        for options in (
            "set -eu",
            "set -o posix",
            "set -x",
            "set -k",
            "set -a",
            "set -f",
            "IFS=/",
            "alias builtin=exit",
        ):
            session = await sandbox.create_session()
            await session.exec(options)
            result = await session.exec("\\pwd; \\echo $A", cwd="/usr", env={"A": "b c", "HOME": None})
            assert result.stdout.split() == ["/usr", "b", "c"], options
            assert (await session.exec("\\pwd; \\echo ${A-unset}")).stdout == "/workspace\nunset\n", options
            assert (await session.env())["HOME"] == "/home/user"


async def test_directory_and_environment_answer_at_once_while_a_command_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session(env={"A": "1"})
        await session.exec("cd /usr; export A=2")
        await sandbox.exec("mkfifo /tmp/started /tmp/gate")
        running = asyncio.ensure_future(
            session.exec("cd /; export A=3; echo > /tmp/started; cat /tmp/gate", env={"C": "c"}, cwd="/tmp")
        )
        await sandbox.exec("read < /tmp/started")
        assert await session.cwd() == "/usr"
        env = await session.env()
        assert (env["A"], env.get("C")) == ("2", None)
        setting = asyncio.ensure_future(session.set_env({"D": "4"}))
        await asyncio.sleep(0)
        assert not setting.done()
        await sandbox.exec("echo > /tmp/gate")
        await running
        await setting
        env = await session.env()
        assert (env["A"], env["D"], env.get("C"), await session.cwd()) == ("3", "4", None, "/usr")


async def test_input_arguments_and_limits() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        data = bytes(range(256)) * 2000
        assert (await session.exec("cat", stdin=data)).stdout_bytes == data
        assert (await session.exec("cat; read x; echo $?")).stdout == "1\n"
        assert (await session.exec("cat", stdin="short")).stdout == "short"
        assert (await session.exec(["printf", "%s|", "a b", "$x", "'", "*", ""])).stdout == "a b|$x|'|*||"
        assert (await session.exec(["nonexistent program"])).exit_code == 127
        result = await session.exec("seq 100000; seq 100000 >&2", max_output=100)
        assert result.truncated
        assert (len(result.stdout_bytes), len(result.stderr_bytes)) == (100, 100)
        wrongs: list[dict[str, object]] = [
            {"command": "a\0b"},
            {"command": []},
            {"command": 3},
            {"command": "x", "cwd": "a\0b"},
        ]
        for wrong in wrongs:
            with pytest.raises(ValidationFailed):
                await session.exec(**wrong)  # type: ignore[arg-type]  # on purpose
        for env in ({"1a": "x"}, {"a b": "x"}, {"a": "\0"}, {"a": 3}, {"": ""}):
            with pytest.raises(ValidationFailed):
                await session.exec("true", env=env)  # type: ignore[arg-type]
            with pytest.raises(ValidationFailed):
                await session.set_env(env)  # type: ignore[arg-type]
        assert (await session.exec("echo fine")).stdout == "fine\n"


async def test_large_output_and_large_commands_come_through_unchanged() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        result = await session.exec("head -c 50000000 /dev/zero; echo end", max_output=1 << 26)
        assert result.stdout_bytes == bytes(50_000_000) + b"end\n"
        text = "ü" * 500_000
        assert (await session.exec(f"printf %s '{text}'")).stdout == text
        invalid = b"printf %s '\xff\xfe'".decode("utf-8", "surrogateescape")
        assert (await session.exec(invalid)).stdout_bytes == b"\xff\xfe"


async def test_ids_are_checked_and_taken_once() -> None:
    async with AsyncSandbox.create() as sandbox:
        for id in ("", ".", "a..b", "a/b", "a b", "x" * 129, "ü"):
            for call in (sandbox.create_session(id=id), sandbox.get_session(id), sandbox.delete_session(id)):
                with pytest.raises(ValidationFailed):
                    await call
        with pytest.raises(SessionNotFound):
            await sandbox.get_session("unknown")
        results = await asyncio.gather(*(sandbox.create_session(id="s") for _ in range(5)), return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["Session", *["SessionAlreadyExists"] * 4]
        with pytest.raises(SessionAlreadyExists):
            await sandbox.create_session(id="s")
        assert (await (await sandbox.get_session("s")).exec("echo ok")).stdout == "ok\n"
        with pytest.raises(ValidationFailed):
            await sandbox.create_session(timeout=-1)


async def test_the_number_of_sessions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    async with AsyncSandbox.create() as sandbox:
        made = [await sandbox.create_session(id=f"s{n}") for n in range(3)]
        with pytest.raises(LimitExceeded):
            await sandbox.create_session()
        with pytest.raises(SessionTerminated):
            await made[0].exec("exit")
        await sandbox.create_session(id="s0")
        await made[1].delete()
        await sandbox.create_session()


async def test_a_session_in_a_missing_directory_is_refused_and_leaves_nothing() -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(Exception, match="/nonexistent"):
            await sandbox.create_session(id="s", cwd="/nonexistent")
        assert await sandbox.list_sessions() == []
        await sandbox.create_session(id="s")


async def test_the_shell_is_a_bash_without_surprises() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("echo 'echo rc' > ~/.bashrc; echo 'echo profile' > ~/.profile")
        session = await sandbox.create_session()
        assert (await session.exec("echo $0 $- $BASHPID:$$ $#")).stdout.replace("\n", "").split(" ")[0] == "bash"
        result = await session.exec(
            "nope; echo $?; (exit 3); echo $?; shopt -q expand_aliases; echo $?; ls /proc/$$/fd"
        )
        assert result.stdout.split()[:3] == ["127", "3", "0"]
        assert result.stderr == "bash: line 1: nope: command not found\n"


@pytest.mark.parametrize("line", ["settings = 1", "a trap", "set -", "nothing"])
@pytest.mark.parametrize("before", ["", "set -e", "trap 'echo error' ERR"])
async def test_a_long_text_in_a_command_costs_no_session(before: str, line: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        await session.exec(before)
        text = f"{line}\n" * 20_000
        written = await session.exec(f"cat > file <<'END'\n{text}END\n", timeout=60)
        assert (written.outcome, written.exit_code) == ("exited", 0)
        assert await session.files.read("file") == text.encode()


async def test_a_command_that_takes_long_to_read_is_run() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        assert (await session.exec(": " + "x" * 20_000_000 + "; echo done")).stdout == "done\n"


async def test_more_exports_than_a_pipe_holds_neither_hold_up_a_command_nor_get_lost() -> None:
    async with AsyncSandbox.create() as sandbox:
        session = await sandbox.create_session()
        for round in ("a", "b"):
            filled = f"for n in {{1..30}}; do printf -v V$n %s{'x' * 10_000}{round} ''; export V$n; done"
            await session.exec(filled)
            running = asyncio.ensure_future(session.exec("echo $V30; cat /dev/fd/3 3< <(sleep 0.3)"))
            env = await session.env()
            assert not running.done()
            assert [env[f"V{number}"][-1] for number in range(1, 31)] == [round] * 30
            assert (await running).stdout == "x" * 10_000 + f"{round}\n"
        await session.exec("unset ${!V*}")
        assert not [name for name in await session.env() if name.startswith("V")]
