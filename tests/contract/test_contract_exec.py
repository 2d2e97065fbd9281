"""`exec`, whatever way the sandbox is reached."""

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.inside import commands_inside
from support.serving import MakeSandbox

from cove import CommandFailed, Outcome, ValidationFailed

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20


async def test_a_string_is_a_shell_line_and_a_list_is_not(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        assert (await sandbox.exec("echo $((1 + 1)) | cat; echo $0")).stdout == "2\nbash\n"
        assert (await sandbox.exec(["echo", "$((1 + 1))", "a  b", "", "*"])).stdout == "$((1 + 1)) a  b  *\n"
        assert (await sandbox.exec(("echo", "tuple"))).stdout == "tuple\n"


async def test_a_result_says_what_ran_how_it_ended_when_and_for_how_long(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        before = datetime.now(UTC)
        result = await sandbox.exec("sleep 0.1; exit 3")
        assert (result.command, result.outcome, result.exit_code) == ("sleep 0.1; exit 3", Outcome.EXITED, 3)
        assert (result.signal, result.session_id, result.truncated) == (None, None, False)
        assert before - timedelta(seconds=1) < result.started_at < datetime.now(UTC)
        assert 0.1 <= result.duration < 10
        assert list((await sandbox.exec(["true", "x"])).command) == ["true", "x"]
        assert (result.ok, result.timed_out, result.is_infrastructure_failure) == (False, False, False)
        assert (await sandbox.exec("true")).ok


EXIT_CODES: list[tuple[str | list[str], int, str]] = [
    ("nosuchprogram", 127, "bash: line 1: nosuchprogram: command not found\n"),
    (["nosuchprogram"], 127, "cove: nosuchprogram: command not found\n"),
    (["/etc/passwd"], 126, "cove: /etc/passwd: Permission denied\n"),
    ("exit 7", 7, ""),
    ("if", 2, "bash: -c: line 2: syntax error: unexpected end of file\n"),
    ("", 0, ""),
    ("# nothing", 0, ""),
]


async def test_the_exit_code_is_the_one_a_shell_user_knows(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for command, exit_code, stderr in EXIT_CODES:
            result = await sandbox.exec(command)
            assert (result.outcome, result.exit_code, result.stderr) == (Outcome.EXITED, exit_code, stderr)


async def test_a_command_that_dies_by_a_signal_has_128_plus_its_number(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        result = await sandbox.exec("printf end; kill -9 $$")
        assert (result.outcome, result.exit_code, result.signal) == (Outcome.SIGNALED, 137, 9)
        assert result.stdout == "end"


async def test_check_raises_for_what_is_not_ok_and_returns_what_is(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        result = await sandbox.exec("echo why >&2; exit 4")
        with pytest.raises(CommandFailed, match="why") as caught:
            result.check()
        assert (caught.value.exit_code, caught.value.outcome) == (4, "exited")
        good = await sandbox.exec("true")
        assert good.check() is good


async def test_a_cwd_that_cannot_be_entered_means_the_command_does_not_run(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for cwd in ("/no/such", "/etc/passwd"):
            result = await sandbox.exec("touch /tmp/ran", cwd=cwd)
            assert result.exit_code == 1
            assert cwd in result.stderr
        assert (await sandbox.exec("ls /tmp/ran")).exit_code == 2
        await sandbox.exec("mkdir -p a/b")
        assert (await sandbox.exec("pwd", cwd="a/b")).stdout == "/workspace/a/b\n"
        assert (await sandbox.exec("pwd")).stdout == "/workspace\n"


async def test_env_holds_for_one_call_and_none_unsets(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(env={"S": "sandbox", "T": "kept"}) as sandbox:
        result = await sandbox.exec("echo ${S-unset} $T $A ${HOME-unset}", env={"S": None, "A": "call", "HOME": None})
        assert result.stdout == "unset kept call unset\n"
        assert (await sandbox.exec("echo $S ${A-unset} $HOME")).stdout == "sandbox unset /home/user\n"
        await sandbox.set_env({"S": "later", "T": None})
        assert (await sandbox.exec("echo $S ${T-unset}")).stdout == "later unset\n"


async def test_values_and_arguments_arrive_byte_for_byte(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for value in ("", " a  b ", "new\nline\n", "'\"$(id)`id`\\", "ünï \udcff\udcfe", "x" * 100_000):
            data = value.encode("utf-8", "surrogateescape")
            assert (await sandbox.exec('printf %s "$A"', env={"A": value})).stdout_bytes == data
            assert (await sandbox.exec(["printf", "%s", value])).stdout_bytes == data


BAD_ARGUMENTS: list[dict[str, object]] = [
    {"env": {"1A": "x"}},
    {"env": {"A=B": "x"}},
    {"env": {"A": "a\0b"}},
    {"env": {"A": 1}},
    {"env": {"A": b"bytes"}},
    {"env": {"A": "x" * 131072}},
    {"env": ["A=1"]},
    {"cwd": "/a\0b"},
    {"cwd": Path("/tmp")},
    {"cwd": b"/tmp"},
    {"command": None},
    {"command": b"true"},
    {"command": []},
    {"command": ["true", 1]},
    {"command": ["true", "x" * 131072]},
    {"command": "a\0b"},
    {"command": "\ud800"},
    {"timeout": -1},
    {"timeout": "1"},
    {"timeout": float("nan")},
    {"timeout": True},
    {"stdin": 7},
    {"stdin": "\ud800"},
    {"max_output": -1},
    {"max_output": "many"},
]


async def test_bad_input_is_refused_before_anything_runs(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for arguments in BAD_ARGUMENTS:
            with pytest.raises(ValidationFailed):
                await sandbox.exec(**{"command": "touch /tmp/ran", **arguments})  # type: ignore[arg-type]  # on purpose
        assert (await sandbox.exec("ls /tmp/ran")).exit_code == 2


async def test_stdin_is_at_its_end_unless_given(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        assert (await sandbox.exec("cat; read x; echo $?")).stdout == "1\n"
        assert (await sandbox.exec("cat", stdin="text ü\n")).stdout == "text ü\n"
        assert (await sandbox.exec("cat", stdin=b"")).stdout == ""
        assert (await sandbox.exec("cat", stdin="\udcff")).stdout_bytes == b"\xff"


async def test_every_byte_value_goes_in_and_comes_out_of_both_streams(make_sandbox: MakeSandbox) -> None:
    data = bytes(range(256)) * 8192
    async with make_sandbox() as sandbox:
        result = await sandbox.exec("tee /dev/stderr", stdin=data)
    assert result.stdout_bytes == result.stderr_bytes == data


OUTPUTS: list[tuple[str, bytes, bytes]] = [
    (r"printf 'a\0b\0'", b"a\0b\0", b""),
    (r"printf '\xff\xfe\x80'; printf '\xc3' >&2", b"\xff\xfe\x80", b"\xc3"),
    (r"printf 'a\r\nb\rc'", b"a\r\nb\rc", b""),
    ("printf x; printf y >&2; printf z", b"xz", b"y"),
    ("printf ''", b"", b""),
]


async def test_output_comes_by_stream_and_unchanged(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for command, stdout, stderr in OUTPUTS:
            result = await sandbox.exec(command)
            assert (result.stdout_bytes, result.stderr_bytes) == (stdout, stderr)
            assert result.stdout == stdout.decode("utf-8", "replace")


async def test_twenty_megabytes_come_whole_when_asked_for(make_sandbox: MakeSandbox) -> None:
    size = 20 * MEGABYTE
    async with make_sandbox() as sandbox:
        await sandbox.exec(f"head -c {size} /dev/urandom > random")
        result = await sandbox.exec("cat random; sha256sum random >&2", max_output=32 * MEGABYTE)
        assert (len(result.stdout_bytes), result.truncated) == (size, False)
        assert result.stderr.split()[0] == hashlib.sha256(result.stdout_bytes).hexdigest()


async def test_max_output_keeps_the_beginning_and_the_end(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        result = await sandbox.exec("seq 1 10000; echo few >&2", max_output=101)
        assert (result.truncated, result.stderr) == (True, "few\n")
        assert result.stdout.startswith("1\n2\n3\n")
        assert result.stdout.endswith("9999\n10000\n")
        default = await sandbox.exec(f"head -c {17 * MEGABYTE} /dev/zero")
        assert default.truncated
        assert 16 * MEGABYTE <= len(default.stdout_bytes) < 16 * MEGABYTE + 1000


async def test_a_command_of_a_megabyte_runs_as_a_small_one_would(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        filler = "#" + "x" * MEGABYTE + "\n"
        result = await sandbox.exec(filler + "echo $0; nosuchprogram; exit 5")
        assert (result.stdout, result.exit_code) == ("bash\n", 5)
        assert result.stderr == "bash: line 2: nosuchprogram: command not found\n"
        text = "ü" * MEGABYTE
        assert (await sandbox.exec(f"printf %s {text}")).stdout == text


async def test_a_timeout_ends_the_whole_tree_and_gives_the_partial_output(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        result = await sandbox.exec("echo partly; sleep 1000 & setsid sleep 1000 & sleep 1000", timeout=0.3)
        assert (result.outcome, result.exit_code, result.timed_out) == (Outcome.TIMED_OUT, 124, True)
        assert result.stdout == "partly\n"
        assert await commands_inside(sandbox) == []


async def test_a_timeout_beyond_all_time_is_none(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        for timeout in (float("inf"), 1e308, 1e18, 10**400):
            assert (await sandbox.exec("echo on", timeout=timeout)).stdout == "on\n"


async def test_a_background_child_does_not_delay_the_result_and_its_words_are_dropped(
    make_sandbox: MakeSandbox,
) -> None:
    async with make_sandbox() as sandbox:
        result = await sandbox.exec("echo first; (while :; do echo later; sleep 0.01; done) &", timeout=20)
        assert result.outcome is Outcome.EXITED
        assert result.stdout.splitlines()[0] == "first"
        assert (await sandbox.exec("yes & echo two", timeout=20)).stdout.replace("y\n", "") == "two\n"
        assert (await sandbox.exec("sleep 0.1; echo three")).stdout == "three\n"


async def test_nothing_of_one_call_is_seen_by_another(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("cd /tmp; export A=1; f() { :; }; alias a=ls; set -e; umask 077")
        result = await sandbox.exec("pwd; echo ${A-unset}; type f a; umask")
        assert result.stdout == "/workspace\nunset\n0022\n"


async def test_calls_run_side_by_side_and_do_not_mix(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await sandbox.exec("mkdir /tmp/meeting")
        meet = "until [ $(ls /tmp/meeting | wc -l) = 20 ]; do sleep 0.05; done"
        commands = [f"for i in $(seq 100); do echo {n}; done; touch /tmp/meeting/{n}; {meet}" for n in range(20)]
        results = await asyncio.gather(*(sandbox.exec(command, timeout=60) for command in commands))
        assert all(result.ok for result in results)
        assert [result.stdout for result in results] == [f"{number}\n" * 100 for number in range(20)]


async def test_a_cancelled_call_ends_its_command(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        call = asyncio.create_task(sandbox.exec("sleep 1000 & echo > /tmp/started; setsid sleep 1000; wait"))
        await sandbox.exec("until [ -e /tmp/started ]; do sleep 0.01; done", timeout=20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(20):  # the server learns of it a moment later
            while await commands_inside(sandbox):
                await asyncio.sleep(0.01)
        assert (await sandbox.exec("echo on")).stdout == "on\n"
