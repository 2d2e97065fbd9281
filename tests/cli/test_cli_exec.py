"""`cove exec` as a program: real arguments, real pipes, real signals."""

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import Piped

COVE = str(Path(sys.executable).parent / "cove")


def cove_exec(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [COVE, "exec", *arguments], input=stdin, capture_output=True, timeout=60, env={**os.environ, **environment}
    )


def start_cove_exec(*arguments: str) -> Piped:
    return Piped([COVE, "exec", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can reach and write: as root, the sandbox has a user of its own."""
    with tempfile.TemporaryDirectory(prefix="cove-mount-", dir="/tmp") as path:
        os.chmod(path, 0o777)
        yield Path(path)


def test_one_argument_is_a_shell_line() -> None:
    assert cove_exec("echo $((6 * 7)) | tr 4 5").stdout == b"52\n"


def test_several_arguments_run_without_a_shell() -> None:
    assert cove_exec("--", "printf", "%s|", "$HOME", "a b", ";").stdout == b"$HOME|a b|;|"


def test_options_after_the_first_word_belong_to_the_command() -> None:
    assert cove_exec("echo", "--timeout", "-n").stdout == b"--timeout -n\n"


def test_stdout_and_stderr_stay_separate_and_the_exit_code_is_the_commands() -> None:
    end = cove_exec("echo out; echo err >&2; exit 42")
    assert (end.stdout, end.stderr, end.returncode) == (b"out\n", b"err\n", 42)


def test_a_command_killed_by_a_signal_ends_with_128_and_its_number() -> None:
    assert cove_exec("kill -SEGV $$").returncode == 128 + signal.SIGSEGV


def test_a_missing_program_ends_with_127() -> None:
    assert cove_exec("--", "no-such-program", "x").returncode == 127


def test_bytes_of_every_kind_pass_through_unchanged() -> None:
    data = bytes(range(256)) * 4096 + b"no newline at the end"
    assert cove_exec("cat", stdin=data).stdout == data


def test_a_large_stream_passes_through_pipes_unchanged(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(os.urandom(1 << 20) * 50)
    end = subprocess.run(["bash", "-c", f"cat data | '{COVE}' exec cat | cmp - data"], cwd=tmp_path, timeout=60)
    assert end.returncode == 0


def test_output_arrives_while_the_command_runs_and_waits_for_input() -> None:
    with start_cove_exec('while read -r line; do echo "got $line"; done') as program:
        for word in (b"one", b"two"):
            program.stdin.write(word + b"\n")
            program.stdin.flush()
            assert program.stdout.readline() == b"got " + word + b"\n"
        program.stdin.close()
        assert program.wait(60) == 0


def test_a_command_that_does_not_read_its_input_ends_all_the_same() -> None:
    assert cove_exec("true", stdin=b"x" * (1 << 20)).returncode == 0
    end = cove_exec("exec <&-; sleep 0.2; echo done", stdin=b"x" * (1 << 20))
    assert (end.stdout, end.stderr) == (b"done\n", b"")


def test_a_command_that_ends_while_its_input_is_still_being_written_keeps_its_exit_code() -> None:
    end = cove_exec("sleep 0.3; echo done; exit 3", stdin=b"x" * (1 << 20))
    assert (end.returncode, end.stdout, end.stderr) == (3, b"done\n", b"")


def test_input_that_never_ends_does_not_keep_it_alive() -> None:
    read, write = os.pipe()
    try:
        assert subprocess.run([COVE, "exec", "echo done"], stdin=read, capture_output=True, timeout=60).returncode == 0
    finally:
        os.close(read)
        os.close(write)


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    with Piped([COVE, "exec", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"y\n"
        program.stdout.close()
        assert program.wait(60) == 128 + signal.SIGPIPE
        assert program.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_is_told_by_the_exit_code(number: signal.Signals) -> None:
    with start_cove_exec("trap '' INT TERM HUP; echo ready; sleep 1000") as program:
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(number)
        assert program.wait(60) == 128 + number


def test_a_signal_ends_it_while_its_output_is_stuck() -> None:
    with start_cove_exec("echo ready; exec yes") as program:
        assert program.stdout.read(6) == b"ready\n"
        # Nobody reads on: the pipe is full for good.
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130


def test_a_timeout_ends_with_124_and_says_so() -> None:
    end = cove_exec("--timeout", "0.3", "echo early; sleep 1000")
    assert (end.stdout, end.returncode) == (b"early\n", 124)
    assert end.stderr == b"cove: the command was ended after 0.3 seconds\n"


def test_variables_and_directory_are_set_for_the_command() -> None:
    end = cove_exec("--env", "A=1", "--env", "B=x=y", "--cwd", "/tmp", 'echo "$A $B $PWD"')
    assert end.stdout == b"1 x=y /tmp\n"


def test_the_callers_environment_is_not_visible() -> None:
    end = cove_exec("env; cat /proc/1/environ /proc/[0-9]*/environ", SECRET_OF_THE_HOST="s3cret")
    assert b"s3cret" not in end.stdout


def test_a_mount_is_read_only_unless_rw_is_said(open_directory: Path) -> None:
    (open_directory / "file").write_text("from the host\n")
    end = cove_exec("--mount", f"{open_directory}:/data", "cat /data/file; touch /data/new")
    assert end.stdout == b"from the host\n"
    assert b"Read-only" in end.stderr
    assert cove_exec("--mount", f"{open_directory}:/data:rw", "touch /data/new").returncode == 0
    assert (open_directory / "new").exists()


def test_its_limits_hold() -> None:
    end = cove_exec("--pids", "40", "--", "sh", "-c", "for _ in $(seq 100); do sleep 1000 & done")
    assert b"fork" in end.stderr
    assert cove_exec("--disk", "20M", "head -c 50M /dev/zero > file").returncode != 0


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--env", "NAME", "true"], b"write it as NAME=VALUE"),
        (["--env", "1=2", "true"], b"use letters, digits and _"),
        (["--mount", "/tmp", "true"], b"write it as SRC:DST"),
        (["--mount", "/no/such/place:/data", "true"], b"/no/such/place"),
        (["--mount", "/proc:/data", "true"], b"refused"),
        (["--timeout", "-1", "true"], b"timeout must be"),
        (["--memory", "much", "true"], b"512M"),
        (["--cpus", "-1", "true"], b"limits.cpus must be more than 0"),
    ],
)
def test_bad_options_end_with_125_and_one_line_that_says_what_to_do(arguments: list[str], advice: bytes) -> None:
    end = cove_exec(*arguments)
    assert end.returncode == 125
    assert end.stderr.startswith(b"cove: ")
    assert end.stderr.count(b"\n") == 1
    assert advice in end.stderr


def test_wrong_usage_ends_with_125_so_that_it_is_not_taken_for_the_commands_code() -> None:
    assert cove_exec().returncode == 125
    assert cove_exec("--no-such-option", "true").returncode == 125
    assert cove_exec("--network", "somewhere", "true").returncode == 125


def test_a_state_directory_that_cannot_be_used_ends_with_125() -> None:
    end = cove_exec("true", COVE_HOME="/proc/cove")
    assert end.returncode == 125
    assert b"Set COVE_HOME" in end.stderr
    assert b"Traceback" not in end.stderr


def test_no_isolation_is_said_loudly() -> None:
    end = cove_exec("--isolation", "none", "echo free")
    assert end.stdout == b"free\n"
    assert b"no isolation" in end.stderr


def test_closed_standard_streams_do_no_harm() -> None:
    end = subprocess.run(["bash", "-c", f"'{COVE}' exec 'echo out; cat; exit 7' <&- >&- 2>&-"], timeout=60)
    assert end.returncode == 7


@pytest.mark.parametrize("arguments", [["exec", "echo x"], ["exec", "yes"], ["--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_finds_no_space_is_a_failure_that_is_told(arguments: list[str], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        end = subprocess.run([COVE, *arguments], stdout=full, stderr=subprocess.PIPE, timeout=60, env=environment)
    assert end.returncode == 125
    assert end.stderr.startswith(b"cove: No space left on device: what the output goes to")


def test_a_file_can_be_its_standard_input(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"from a file")
    with open(tmp_path / "input", "rb") as file:
        end = subprocess.run([COVE, "exec", "cat"], stdin=file, capture_output=True, timeout=60)
    assert end.stdout == b"from a file"


def test_a_pipe_that_does_not_block_is_written_completely() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with subprocess.Popen([COVE, "exec", "head -c 3000000 /dev/zero"], stdout=write, stdin=subprocess.DEVNULL) as end:
        os.close(write)
        with open(read, "rb") as output:
            assert len(output.read()) == 3_000_000
    assert end.returncode == 0


def test_the_command_waits_for_a_reader_that_is_slower_than_it() -> None:
    with subprocess.Popen(
        [COVE, "exec", "head -c 200000000 /dev/zero; echo done >&2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert len(program.stdout.read(1000)) == 1000
        # More than the log keeps is still to come, and nobody reads it: the command cannot be done.
        assert not select.select([program.stderr], [], [], 3)[0]
        output, said = program.communicate(timeout=60)
    assert (len(output), said) == (200_000_000 - 1000, b"done\n")
    assert program.returncode == 0


def test_what_the_policy_refused_is_told_with_the_option_that_allows_it() -> None:
    end = cove_exec("--allow", "example.com", "getent hosts one.example; getent hosts one.example; echo out")
    assert (end.stdout, end.returncode) == (b"out\n", 0)
    (line,) = end.stderr.splitlines()
    assert line.endswith(b"one.example is not allowed; `--allow one.example` would allow it")
    many = cove_exec("--allow", "example.com", "for n in 1 2 3 4 5 6 7; do getent hosts $n.example; done")
    assert many.stderr.splitlines()[5:] == [b"cove: 2 other hosts were refused too"]
    assert cove_exec("--allow", "example.com", "true").stderr == b""
