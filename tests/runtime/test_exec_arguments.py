"""What a call may ask for: command, cwd, env, stdin, limits."""

import pytest

from cove import AsyncSandbox
from cove.errors import ValidationFailed

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20


async def test_a_string_is_a_shell_line_and_a_list_is_not() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("echo a  b | tr a-z A-Z; echo $0")).stdout == "A B\nbash\n"
        assert (await sandbox.exec(["echo", "a  b | $HOME", "*"])).stdout == "a  b | $HOME *\n"
        assert (await sandbox.exec(("printf", "%s|", "", "x\ny"))).stdout == "|x\ny|"


@pytest.mark.parametrize(
    ("command", "exit_code", "stderr"),
    [
        ("nosuchprogram", 127, "bash: line 1: nosuchprogram: command not found\n"),
        (["nosuchprogram"], 127, "cove: nosuchprogram: command not found\n"),
        (["/no/such/program"], 127, "cove: /no/such/program: command not found\n"),
        ("/etc/passwd", 126, "bash: line 1: /etc/passwd: Permission denied\n"),
        (["/etc/passwd"], 126, "cove: /etc/passwd: Permission denied\n"),
        (["/workspace"], 126, "cove: /workspace: Permission denied\n"),
        (["/etc/passwd/x"], 127, "cove: /etc/passwd/x: command not found\n"),
        ("exit 7", 7, ""),
        ("if", 2, "bash: -c: line 2: syntax error: unexpected end of file\n"),
        ("", 0, ""),
        ("# nothing", 0, ""),
        ("false\n", 1, ""),
    ],
)
async def test_the_exit_code_is_the_one_a_shell_user_knows(
    command: str | list[str], exit_code: int, stderr: str
) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(command)
    assert (result.outcome, result.exit_code, result.stdout) == ("exited", exit_code, "")
    assert result.stderr.replace("line 1: syntax", "line 2: syntax") == stderr


async def test_a_program_that_is_found_but_not_executable_in_one_folder_is_taken_from_the_next() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkdir -p a b; echo x > a/tool; printf '#!/bin/sh\\necho b' > b/tool; chmod +x b/tool")
        path = "/workspace/a:/workspace/b:/bin"
        assert (await sandbox.exec(["tool"], env={"PATH": path})).stdout == "b\n"
        assert (await sandbox.exec(["tool"], env={"PATH": "/workspace/a"})).exit_code == 126
        assert (await sandbox.exec(["tool"], env={"PATH": None})).exit_code == 127


@pytest.mark.parametrize("path", [None, "", "/nonexistent"])
async def test_a_shell_line_runs_whatever_path_the_call_has(path: str | None) -> None:
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("echo here", env={"PATH": path})).stdout == "here\n"


async def test_a_cwd_that_cannot_be_entered_means_the_command_does_not_run() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("echo x > file; mkdir locked; chmod 0 locked; mkdir dir; ln -s nowhere dangling")
        for cwd, reason in [
            ("/no/such/directory", "No such file or directory"),
            ("/workspace/file", "Not a directory"),
            ("/workspace/locked", "Permission denied"),
            ("/workspace/dangling", "No such file or directory"),
            ("missing", "No such file or directory"),
        ]:
            result = await sandbox.exec("echo ran > /tmp/ran; echo ran", cwd=cwd)
            assert (result.outcome, result.exit_code, result.stdout) == ("exited", 1, "")
            absolute = cwd if cwd.startswith("/") else f"/workspace/{cwd}"
            assert result.stderr == f"cove: cannot enter directory {absolute}: {reason}\n"
        assert (await sandbox.exec("test -e /tmp/ran")).exit_code == 1


async def test_a_deleted_workspace_fails_as_a_missing_cwd_and_the_sandbox_goes_on() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkdir /workspace/here; cd /workspace/here; rmdir /workspace/here")
        assert (await sandbox.exec("pwd", cwd="here")).exit_code == 1
        assert (await sandbox.exec("pwd")).stdout == "/workspace\n"


async def test_a_relative_cwd_starts_at_the_workspace() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkdir -p a/b")
        assert (await sandbox.exec("pwd", cwd="a/b")).stdout == "/workspace/a/b\n"
        assert (await sandbox.exec("pwd", cwd="/usr")).stdout == "/usr\n"
        assert (await sandbox.exec(["./tool"], cwd="a")).exit_code == 127


async def test_a_call_overrides_the_sandbox_which_overrides_the_built_in_environment() -> None:
    async with AsyncSandbox.create(env={"A": "spec", "B": "spec", "LANG": "C"}) as sandbox:
        await sandbox.set_env({"B": "set", "C": "set"})
        show = "echo $A $B $C $D $LANG ${HOME-unset}"
        assert (await sandbox.exec(show)).stdout == "spec set set C /home/user\n"
        changed = await sandbox.exec(show, env={"A": "call", "B": None, "D": "d d", "HOME": None})
        assert changed.stdout == "call set d d C unset\n"
        assert (await sandbox.exec(show)).stdout == "spec set set C /home/user\n"
        await sandbox.set_env({"B": None, "LANG": None})
        assert (await sandbox.exec("echo ${B-unset} ${LANG-unset}")).stdout == "unset unset\n"


async def test_values_reach_the_command_byte_for_byte() -> None:
    async with AsyncSandbox.create() as sandbox:
        value = "a=b 'c' \"d\" $e \\ é \n\t\udcff"
        result = await sandbox.exec(["printenv", "V"], env={"V": value})
        assert result.stdout_bytes == value.encode("utf-8", "surrogateescape") + b"\n"


@pytest.mark.parametrize(
    "arguments",
    [
        {"env": {"1A": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"": "x"}},
        {"env": {"A": "a\0b"}},
        {"env": {"A": 1}},
        {"env": {"A": "x" * (128 << 10)}},
        {"env": ["A=1"]},
        {"cwd": "/a\0b"},
        {"timeout": -1},
        {"timeout": "5"},
        {"timeout": float("nan")},
        {"stdin": 5},
        {"stdin": ["x"]},
        {"stdin": "\ud800"},
        {"max_output": -1},
        {"max_output": "1k"},
        {"max_output": True},
        {"command": "echo a\0b"},
        {"command": ["echo", "a\0b"]},
        {"command": []},
        {"command": [""]},
        {"command": None},
        {"command": b"true"},
        {"command": ["echo", "x" * (128 << 10)]},
        {"command": ["echo", 1]},
    ],
    ids=lambda arguments: repr(arguments)[:40],
)
async def test_bad_input_is_refused_before_anything_runs(arguments: dict[str, object]) -> None:
    async with AsyncSandbox.create() as sandbox:
        call = {"command": "touch /tmp/ran", **arguments}
        with pytest.raises(ValidationFailed) as caught:
            await sandbox.exec(call.pop("command"), **call)  # type: ignore[arg-type]
        assert caught.value.code == "VALIDATION_FAILED"
        assert len(caught.value.message) < 500
        assert (await sandbox.exec("test -e /tmp/ran")).exit_code == 1


@pytest.mark.parametrize("cwd", [3, b"/tmp"])
async def test_a_cwd_that_is_no_string_is_refused(cwd: object) -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(ValidationFailed, match="cwd"):
            await sandbox.exec("true", cwd=cwd)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ending",
    ["echo $0", "nosuchprogram", "exit 5", "kill $$", "set -u; echo $unset", 'echo "$#"; cat', "ls /proc/self/fd"],
)
async def test_a_command_of_a_megabyte_behaves_as_bash_c_would(ending: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        large = await sandbox.exec("#" + "x" * MEGABYTE + "\n" + ending, stdin="in")
        small = await sandbox.exec("#x\n" + ending, stdin="in")
    assert (large.outcome, large.exit_code, large.signal) == (small.outcome, small.exit_code, small.signal)
    assert (large.stdout, large.stderr) == (small.stdout, small.stderr)


async def test_a_command_of_a_megabyte_arrives_unchanged() -> None:
    text = "".join(f"line {number} \\ 'é' \t  \n" for number in range(60_000))
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(f"cat <<'END'\n{text}\nEND\n")
    assert result.stdout == text + "\n"


async def test_a_syntax_error_in_a_large_command_ends_with_the_same_code() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("#" + "x" * MEGABYTE + "\nif")
    assert result.exit_code == 2
    assert "syntax error" in result.stderr


async def test_a_list_with_more_than_linux_passes_in_all_is_refused_by_linux() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(["true", *(["x" * 100_000] * 100)])
    assert (result.exit_code, result.stderr) == (126, "cove: true: Argument list too long\n")


async def test_stdin_is_at_its_end_unless_given() -> None:
    async with AsyncSandbox.create() as sandbox:
        for command in ("cat", "read line || echo end", ["cat"], "exec cat"):
            result = await sandbox.exec(command, timeout=20)
            assert result.exit_code == 0
            assert result.stdout in ("", "end\n")


@pytest.mark.parametrize("data", [b"", b"a\0b\xff\r\n", "text é\n", "lone \udcff"])
async def test_stdin_arrives_byte_for_byte(data: bytes | str) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(["cat"], stdin=data)
    assert result.stdout_bytes == (data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)


async def test_a_large_stdin_arrives_whole_and_a_command_need_not_read_it() -> None:
    data = bytes(range(256)) * (20 * MEGABYTE // 256)
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("wc -c", stdin=data)).stdout == f"{len(data)}\n"
        assert (await sandbox.exec("head -c 3 | od -An -tu1", stdin=data)).stdout.split() == ["0", "1", "2"]
        assert (await sandbox.exec("true", stdin=data)).ok
        assert (await sandbox.exec(["cat"], stdin=data, max_output=len(data))).stdout_bytes == data


async def test_nothing_of_one_call_is_seen_by_the_next() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("cd /tmp; export A=1; f() { :; }; alias x=y; set -u; shopt -s extglob; umask 0; ulimit -n 9")
        result = await sandbox.exec("pwd; echo ${A-unset} $-; type f; alias; shopt extglob; umask; ulimit -n")
    lines = result.stdout.splitlines()
    assert lines[0] == "/workspace"
    assert lines[1].startswith("unset ")
    assert "u" not in lines[1].split()[1]
    assert lines[2].split() == ["extglob", "off"]
    assert lines[3] == "0022"
    assert int(lines[4]) > 50 if lines[4] != "unlimited" else True


async def test_a_result_says_what_ran_when_and_for_how_long() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(["true"])
    assert result.command == ["true"]
    assert result.started_at.utcoffset() is not None
    assert 0 < result.duration < 20
    assert (result.session_id, result.session_restarted, result.signal, result.truncated) == (None, False, None, False)
    assert result.ok
    assert result.check() is result
