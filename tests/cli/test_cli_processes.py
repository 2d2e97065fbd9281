"""`cove start`, `ps`, `logs`, `kill`, `session`, and `exec` and `run` with --in, against a real server."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.commands import COVE, Cli, cli_of_module, sandbox_of_test

pytestmark = pytest.mark.pure
cove = cli_of_module
sandbox = sandbox_of_test


def status_of(cove: Cli, sandbox: str, process: str) -> str:
    return str({each["id"]: each["status"] for each in cove.json("ps", sandbox)}[process])


def test_a_command_runs_in_a_sandbox_that_stays(cove: Cli, sandbox: str) -> None:
    end = cove(
        "exec", "--in", sandbox, "--env", "A=b", "--cwd", "/tmp", "cat > f; echo $A; echo err >&2; exit 7", stdin=b"x"
    )
    assert (end.returncode, end.stdout, end.stderr) == (7, b"b\n", b"err\n")
    assert cove.text("exec", "--in", sandbox, "--", "cat", "/tmp/f") == "x"


def test_bytes_of_every_kind_pass_through_a_server_unchanged(cove: Cli, sandbox: str) -> None:
    data = bytes(range(256)) * 4096 + b"no newline at the end"
    end = cove("exec", "--in", sandbox, "cat", stdin=data)
    assert (end.returncode, end.stdout) == (0, data)


def test_a_command_that_does_not_read_its_input_ends_all_the_same(cove: Cli, sandbox: str) -> None:
    end = cove("exec", "--in", sandbox, "true", stdin=b"x" * (1 << 20))
    assert (end.returncode, end.stderr) == (0, b"")


def test_a_time_that_is_up_is_124(cove: Cli, sandbox: str) -> None:
    end = cove("exec", "--in", sandbox, "--timeout", "0.3", "echo begun; sleep 1000")
    assert (end.returncode, end.stdout) == (124, b"begun\n")


def test_ctrl_c_ends_the_command_inside(cove: Cli, sandbox: str) -> None:
    with cove.start("exec", "--in", sandbox, "echo begun; sleep 1000") as program:
        assert program.stdout.readline() == b"begun\n"
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    assert [each["status"] for each in cove.json("ps", sandbox)] == ["killed"]


def test_a_reader_that_goes_away_ends_the_command_inside(cove: Cli, sandbox: str) -> None:
    with cove.start("exec", "--in", sandbox, "yes") as program:
        assert program.stdout.readline() == b"y\n"
        program.stdout.close()
        assert program.wait(60) == 128 + signal.SIGPIPE
        assert program.stderr.read() == b""
    assert [each["status"] for each in cove.json("ps", sandbox)] == ["killed"]


def test_a_process_is_started_listed_read_and_killed(cove: Cli, sandbox: str) -> None:
    assert cove.text("start", "--id", "worker", sandbox, "echo out; echo err >&2; sleep 1000") == "worker\n"
    assert "sleep 1000" in cove.text("ps", sandbox)
    with cove.start("logs", "-f", sandbox, "worker") as reader:
        assert reader.stdout.readline() == b"out\n"
        assert reader.stderr.readline() == b"err\n"
        cove.text("kill", sandbox, "worker")
        assert reader.wait(60) == 0
    assert status_of(cove, sandbox, "worker") == "killed"
    end = cove("logs", sandbox, "worker")
    assert (end.returncode, end.stdout, end.stderr) == (0, b"out\n", b"err\n")


def test_the_id_of_an_ended_process_is_free_again_when_it_is_forgotten(cove: Cli, sandbox: str) -> None:
    cove.text("start", "--id", "job", sandbox, "exit 3")
    cove.text("logs", "-f", sandbox, "job")
    end = cove("start", "--id", "job", sandbox, "true")
    assert (end.returncode, end.stdout) == (125, b"")
    assert f"cove ps --cleanup {sandbox}".encode() in end.stderr
    assert cove.json("ps", "--cleanup", sandbox) == []
    assert cove.text("start", "--id", "job", sandbox, "true") == "job\n"


def test_several_words_are_a_program_and_its_arguments(cove: Cli, sandbox: str) -> None:
    id = cove.text("start", sandbox, "--", "printf", "%s|", "$HOME", "a b", "--json").strip()
    assert cove.text("logs", "-f", sandbox, id) == "$HOME|a b|--json|"


def test_ctrl_c_ends_the_reading_and_not_the_process(cove: Cli, sandbox: str) -> None:
    cove.text("start", "--id", "ticker", sandbox, "echo begun; sleep 1000")
    with cove.start("logs", "-f", sandbox, "ticker") as reader:
        assert reader.stdout.readline() == b"begun\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(60) == 130
        assert reader.stderr.read() == b""
    assert status_of(cove, sandbox, "ticker") == "running"


def test_a_reader_of_the_log_that_goes_away_ends_the_reading_quietly(cove: Cli, sandbox: str) -> None:
    cove.text("start", "--id", "flood", sandbox, "yes")
    with cove.start("logs", "-f", sandbox, "flood") as reader:
        assert reader.stdout.readline() == b"y\n"
        reader.stdout.close()
        assert reader.wait(60) == 128 + signal.SIGPIPE
        assert b"Traceback" not in reader.stderr.read()
    assert status_of(cove, sandbox, "flood") == "running"


def test_reading_goes_on_from_a_cursor(cove: Cli, sandbox: str) -> None:
    cove.text("exec", "--in", sandbox, "mkfifo go")
    cove.text("start", "--id", "steps", sandbox, "echo one; cat go; echo two")
    with cove.start("logs", "-f", "--json", sandbox, "steps") as reader:
        first = json.loads(reader.stdout.readline())
        reader.send_signal(signal.SIGTERM)
        reader.wait(60)
    assert (first["type"], first["stream"], first["text"]) == ("output", "stdout", "one\n")
    cove.text("exec", "--in", sandbox, ": > go")
    rest = cove("logs", "-f", "--since", first["cursor"], "--show-cursor", sandbox, "steps")
    assert (rest.returncode, rest.stdout) == (0, b"two\n")
    assert rest.stderr.startswith(b"cove: cursor ")


def test_signals_are_named_or_numbered_and_unknown_ones_refused(cove: Cli, sandbox: str) -> None:
    for name, code in (("INT", 130), ("15", 143), ("SIGKILL", 137)):
        id = cove.text("start", sandbox, "--", "sleep", "1000").strip()
        cove.text("kill", "--signal", name, sandbox, id)
        cove.text("logs", "-f", sandbox, id)
        assert {each["id"]: each["exit_code"] for each in cove.json("ps", sandbox)}[id] == code
    end = cove("kill", "-s", "NONSENSE", sandbox, id)
    assert end.returncode == 125
    assert b"unknown signal" in end.stderr


def test_a_session_keeps_its_state_from_one_call_to_the_next(cove: Cli, sandbox: str) -> None:
    assert cove.text("session", "create", "--id", "main", sandbox) == "main\n"
    cove.text("session", "exec", sandbox, "main", "cd /tmp; name=world; f() { return 9; }")
    end = cove("session", "exec", sandbox, "main", "echo $name $PWD; echo err >&2; f")
    assert (end.returncode, end.stdout, end.stderr) == (9, b"world /tmp\n", b"err\n")
    assert "/tmp" in cove.text("session", "ls", sandbox)
    assert [each["id"] for each in cove.json("session", "ls", sandbox)] == ["main"]
    id = cove.text("start", "--session", "main", sandbox, "echo $name").strip()
    assert cove.text("logs", "-f", sandbox, id) == "world\n"
    cove.text("session", "create", "--id", "other", sandbox)
    end = cove("session", "rm", sandbox, "main", "missing", "other")
    assert (end.returncode, end.stderr.count(b"missing")) == (125, 1)
    assert cove.json("session", "ls", sandbox) == []
    assert cove.text("session", "rm", "-f", sandbox, "main") == ""
    assert cove.text("session", "new", "--id", "main", sandbox) == "main\n"


def test_a_session_is_forked_by_its_id(cove: Cli, sandbox: str) -> None:
    cove.text("session", "create", "--id", "forked", sandbox)
    cove.text("session", "exec", sandbox, "forked", "name=world; cd /usr")
    copy = cove.text("session", "fork", sandbox, "forked").strip()
    other = cove.json("session", "fork", sandbox, copy)["id"]
    assert len({"forked", copy, other}) == 3
    assert cove.text("session", "exec", sandbox, other, "echo $name $PWD") == "world /usr\n"
    assert b"missing" in cove("session", "fork", sandbox, "missing").stderr


def test_a_session_takes_input_and_gives_results_as_json(cove: Cli, sandbox: str) -> None:
    cove.text("session", "create", "--id", "s", sandbox)
    end = cove("session", "exec", "-i", sandbox, "s", "cat", stdin=b"\x00\xff")
    assert (end.returncode, end.stdout) == (0, b"\x00\xff")
    end = cove("session", "exec", "--json", sandbox, "s", "echo out; exit_code=3; (exit 3)")
    assert end.returncode == 3
    assert json.loads(end.stdout)["stdout"] == "out\n"
    assert cove("session", "exec", "--timeout", "0.3", sandbox, "s", "sleep 1000").returncode == 124
    assert cove.text("session", "exec", sandbox, "s", "echo $exit_code") == "3\n"


def test_a_command_that_ends_its_session_has_its_code_and_the_next_is_told(cove: Cli, sandbox: str) -> None:
    cove.text("session", "create", "--id", "short", sandbox)
    end = cove("session", "exec", sandbox, "short", "echo last words; exit 6")
    assert (end.returncode, end.stdout) == (6, b"last words\n")
    end = cove("session", "exec", sandbox, "short", "true")
    assert end.returncode == 125
    assert f"cove session create --id short {sandbox}`".encode() in end.stderr
    cove.text("session", "create", "--id", "short", sandbox)
    cove.text("session", "exec", sandbox, "short", "true")


def test_ctrl_c_interrupts_the_command_of_a_session(cove: Cli, sandbox: str) -> None:
    cove.text("session", "create", "--id", "main", sandbox)
    cove.text("exec", "--in", sandbox, "mkfifo begun")
    with cove.start("session", "exec", sandbox, "main", "x=kept; echo > begun; sleep 1000") as program:
        cove.text("exec", "--in", sandbox, "cat begun")
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    end = cove("session", "exec", "--timeout", "30", sandbox, "main", "echo $x")
    assert (end.returncode, end.stdout) == (0, b"kept\n")


def test_code_runs_in_a_sandbox_that_stays_and_keeps_its_state_by_name(cove: Cli, sandbox: str, tmp_path: Path) -> None:
    end = cove("run", "--in", sandbox, "-c", "print('hi'); 6 * 7")
    if b"cove setup" in end.stderr:
        pytest.skip("the environment for code is not set up on this machine")
    assert (end.returncode, end.stdout) == (0, b"hi\n42\n")
    assert cove("run", "--in", sandbox, "--context", "book", "-c", "x = 20").returncode == 0
    assert cove.text("run", "--in", sandbox, "--context", "book", "-c", "x + 1") == "21\n"
    program = tmp_path / "other.js"
    program.write_text("1")
    end = cove("run", "--in", sandbox, "--context", "book", str(program))
    assert end.returncode == 125
    assert b"context book speaks python, not javascript" in end.stderr
    end = cove("run", "--in", sandbox, "--context", "book", "-c", "import os; os._exit(3)")
    assert end.returncode == 1
    assert cove.text("run", "--in", sandbox, "--context", "book", "-c", "'x' in dir()") == "False\n"


def test_ctrl_c_interrupts_code_and_its_context_stays(cove: Cli, sandbox: str) -> None:
    if b"cove setup" in cove("run", "--in", sandbox, "-c", "1").stderr:
        pytest.skip("the environment for code is not set up on this machine")
    code = "import time; x = 1; print('begun', flush=True); time.sleep(1000)"
    with cove.start("run", "--in", sandbox, "--context", "book", "-c", code) as program:
        assert program.stdout.readline() == b"begun\n"
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 130
    assert cove.text("run", "--in", sandbox, "--context", "book", "-c", "x") == "1\n"


def test_names_of_things_that_stay_need_a_sandbox_that_stays() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COVE_URL"}
    end = subprocess.run([COVE, "run", "--context", "x", "-c", "1"], capture_output=True, env=environment, timeout=60)
    assert end.returncode == 125
    assert b"--in" in end.stderr


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("start", "SANDBOX", "echo hi", "--id", "five"), "cove start --id five SANDBOX 'echo hi'"),
        (("exec", "--in", "SANDBOX", "sleep 5", "--timeout=1"), "cove exec --in SANDBOX --timeout=1 'sleep 5'"),
        (("exec", "sleep 5", "--timeout", "1"), "cove exec --timeout 1 'sleep 5'"),
        (("session", "exec", "SANDBOX", "main", "cd /", "-i"), "cove session exec -i SANDBOX main 'cd /'"),
        (("shell", "bash -l", "--in", "SANDBOX"), "cove shell --in SANDBOX 'bash -l'"),
    ],
)
def test_options_behind_a_shell_line_are_refused_with_what_to_write(
    cove: Cli, sandbox: str, arguments: tuple[str, ...], instead: str
) -> None:
    end = cove(*(sandbox if word == "SANDBOX" else word for word in arguments))
    assert (end.returncode, end.stdout) == (125, b"")
    assert instead.replace("SANDBOX", sandbox) in end.stderr.decode()
    assert cove.json("ps", sandbox) == []


def test_options_may_stand_between_the_sandbox_and_the_command(cove: Cli, sandbox: str) -> None:
    assert cove.text("start", sandbox, "--id", "late", "--env", "A=b", "echo $A").strip() == "late"
    assert cove.text("logs", "-f", sandbox, "late") == "b\n"


def test_options_of_a_program_are_its_own(cove: Cli, sandbox: str) -> None:
    for words in (("echo", "--timeout", "1"), ("--", "echo", "--timeout", "1")):
        assert cove.text("exec", "--in", sandbox, *words) == "--timeout 1\n"
    end = cove("exec", "--in", sandbox, "--", "no such", "--timeout", "1")
    assert (end.returncode, b"no such" in end.stderr) == (127, True)
