"""`cove create`, `ls`, `info`, `restart`, `rm`, and what is true of every subcommand that needs a server."""

import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest
from support.commands import COVE, Cli, cli_of_module

from cove.cli.commands import COMMANDS, overview

pytestmark = pytest.mark.pure
cove = cli_of_module


def on_a_terminal(cove: Cli, *arguments: str, columns: int = 80) -> str:
    """What a person sees."""
    master, slave = pty.openpty()
    ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**cove.environment, "TERM": "xterm"}
    subprocess.run([COVE, *arguments], stdout=slave, env=environment, timeout=60, check=True)
    os.close(slave)
    seen = b""
    while True:
        try:
            seen += os.read(master, 65536)
        except OSError:  # the last slave is closed: pty(7)
            break
    os.close(master)
    return seen.decode()


def test_create_prints_an_id_that_the_others_take(cove: Cli) -> None:
    with cove.sandbox() as id:
        assert re.fullmatch(r"[a-z0-9-]+", id)
        assert id in cove.text("ls")
        assert cove.text("ls", "-q") == f"{id}\n"
        assert f"{id}\n" in cove.text("info", id)
        assert cove.text("rm", id) == ""
    assert cove.text("ls", "-q") == ""


def test_its_options_shape_the_sandbox(cove: Cli) -> None:
    options = "--id shaped --label team=blue --label n=1 --env A=x --memory 256M --cpus 1.5 --pids 200 --disk 1G"
    with cove.sandbox(*options.split(), "--idle-timeout", "600", "--lifetime", "3600") as id:
        assert id == "shaped"
        info = cove.json("info", id)
        assert info["spec"]["labels"] == {"team": "blue", "n": "1"}
        assert info["spec"]["env"] == {"A": "x"}
        assert (info["spec"]["idle_timeout"], info["spec"]["lifetime"]) == (600, 3600)
        limits = {name: value for name, value in info["spec"]["limits"].items() if value is not None}
        assert limits == {"memory": 256 << 20, "cpus": 1.5, "pids": 200, "disk": 1 << 30}
        assert "team=blue" in cove.text("ls")
        assert "memory=268435456" in cove.text("info", id)


def test_an_id_that_is_taken_is_refused_unless_that_will_do(cove: Cli) -> None:
    with cove.sandbox("--id", "taken"):
        end = cove("create", "--id", "taken")
        assert (end.returncode, end.stdout) == (125, b"")
        assert end.stderr == b"cove: there is a sandbox taken already: choose another --id, or add --exist-ok\n"
        assert cove.text("create", "--id", "taken", "--exist-ok") == "taken\n"


def test_what_the_server_does_not_allow_is_refused(cove: Cli) -> None:
    for option in (("--network", "host"), ("--isolation", "none"), ("--mount", "/tmp:/mnt")):
        end = cove("create", *option)
        assert (end.returncode, end.stdout) == (125, b"")
        assert b"this server does not allow" in end.stderr


@pytest.mark.parametrize("size", ["much", "-1", "12X", ""])
def test_a_size_that_is_none_is_refused_before_anything_is_made(cove: Cli, size: str) -> None:
    end = cove("create", f"--memory={size}")
    assert end.returncode == 125
    assert b"512M" in end.stderr


@pytest.mark.parametrize("label", ["team", "=blue", "="])
def test_a_label_without_a_name_or_a_value_is_refused(cove: Cli, label: str) -> None:
    end = cove("create", "--label", label)
    assert (end.returncode, end.stdout) == (125, b"")
    assert end.stderr.decode() == f"cove: --label {label}: write it as NAME=VALUE\n"


def test_usage_is_told_when_it_is_asked_for(cove: Cli) -> None:
    with cove.sandbox() as id:
        assert "usage" not in cove.json("info", id)
        assert cove.json("info", id, "--usage")["usage"]["pids"] != 0
        assert "disk bytes" in cove.text("info", id, "--usage")


def test_restart_ends_what_runs_and_keeps_the_files(cove: Cli) -> None:
    with cove.sandbox() as id:
        cove.text("exec", "--in", id, "echo kept > file")
        cove.text("start", "--id", "sleeper", id, "sleep 1000")
        cove.text("restart", id)
        assert cove.json("ps", id) == []
        assert cove.text("exec", "--in", id, "cat file") == "kept\n"


def test_rm_takes_several_and_tells_of_those_that_are_not_there(cove: Cli) -> None:
    ids = [cove.text("create").strip() for _ in range(2)]
    end = cove("rm", ids[0], "no-such-sandbox", ids[1])
    assert (end.returncode, end.stderr) == (125, b"cove: there is no sandbox no-such-sandbox; -f lets that pass\n")
    assert cove.text("ls", "-q") == ""
    assert cove.text("rm", "-f", *ids) == ""


def test_lists_are_json_when_asked(cove: Cli) -> None:
    assert cove.json("ls") == []
    with cove.sandbox() as id:
        assert [(each["id"], each["status"]) for each in cove.json("ls")] == [(id, "running")]


def test_a_table_on_a_terminal_fits_its_width_and_in_a_pipe_loses_nothing(cove: Cli) -> None:
    long = "x" * 200
    with cove.sandbox("--label", f"long={long}") as id:
        seen = on_a_terminal(cove, "ls")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", seen)
        assert id in plain
        assert max(map(len, plain.splitlines())) <= 80
        assert len(plain.splitlines()) == 2
        assert long in cove.text("ls")
        assert "\x1b" not in cove.text("ls")


def test_what_a_sandbox_has_named_does_not_reach_the_terminal_as_control_characters(cove: Cli) -> None:
    with cove.sandbox("--env", "NAME=\x1b[2J\x07red") as id:
        cove.text("start", id, "echo \x1b[2J\x07red; sleep 1000")
        assert "\x1b[2J" not in on_a_terminal(cove, "ps", id)
        assert "\\x1b[2J\\x07red" in cove.text("ps", id)
    assert "printable" in cove("create", "--label", "name=\x1b[2J").stderr.decode()


def test_without_a_server_a_line_says_so_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    for arguments in (("ls",), ("info", "x"), ("exec", "--in", "x", "true"), ("exec", "true"), ("cp", "-", "x:y")):
        environment = {**os.environ, "COVE_URL": f"http://127.0.0.1:{port}"}
        end = subprocess.run([COVE, *arguments], capture_output=True, stdin=subprocess.DEVNULL, env=environment)
        assert (end.returncode, end.stdout) == (125, b"")
        assert re.fullmatch(
            rb"cove: no server answers at http://127.0.0.1:\d+: start one with `cove serve`.*\n", end.stderr
        )


def test_what_is_not_an_address_is_said_to_be_none(cove: Cli) -> None:
    for url in ("nonsense", "ftp://127.0.0.1", "http://[", "http://127.0.0.1:99999999"):
        end = cove("ls", "--url", url)
        assert end.returncode == 125
        assert b"is not the address of a server" in end.stderr


def test_a_wrong_key_is_told(cove: Cli) -> None:
    end = cove("ls", "--api-key", "wrong")
    assert (end.returncode, end.stdout) == (125, b"")
    assert b"--api-key" in end.stderr
    assert cove("ls", COVE_API_KEY="wrong").returncode == 125
    assert cove("ls", "--api-key", cove.server.key, COVE_HOME="/nowhere").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("info",),
        ("restart",),
        ("ps",),
        ("logs", "-f", "SANDBOX", "x"),
        ("kill", "SANDBOX", "x"),
        ("session", "ls"),
        ("session", "exec", "SANDBOX", "x", "true"),
        ("watch",),
        ("exec", "--in", "SANDBOX", "true"),
        ("run", "-c", "1", "--in"),
        ("cp", "SANDBOX:/x", "-"),
    ],
)
def test_a_sandbox_that_is_not_there_is_named(cove: Cli, arguments: tuple[str, ...]) -> None:
    given = [word.replace("SANDBOX", "missing") for word in arguments]
    end = cove(*given, *([] if "missing" in " ".join(given) else ["missing"]))
    assert (end.returncode, end.stdout, end.stderr) == (125, b"", b"cove: there is no sandbox missing\n")


def test_a_throw_away_sandbox_can_be_a_servers(cove: Cli) -> None:
    assert cove.text("exec", "echo $((6 * 7))") == "42\n"
    assert cove.text("ls", "-q") == ""
    end = cove("exec", "--network", "host", "true")
    assert end.returncode == 125
    assert b"this server does not allow" in end.stderr


def test_what_makes_a_sandbox_does_not_go_with_one_that_is_there(cove: Cli) -> None:
    for option in (("--network", "none"), ("--isolation", "none"), ("--mount", "/tmp:/mnt"), ("--memory", "1G")):
        end = cove("exec", "--in", "any", *option, "true")
        assert end.returncode == 125
        assert b"do not go with --in" in end.stderr


def test_a_mount_is_a_directory_of_the_servers_machine(cove: Cli) -> None:
    for command in (("create",), ("exec", "true"), ("run", "-c", "1")):
        end = cove(command[0], "--mount", ".:/workspace:rw", *command[1:])
        assert (end.returncode, end.stdout) == (125, b"")
        assert b"where the server runs: write an absolute path" in end.stderr


def test_a_sandbox_taken_for_a_program_gets_a_hint(cove: Cli) -> None:
    with cove.sandbox() as id:
        for url in (cove.server.url, ""):
            end = cove("exec", id, "ls", COVE_URL=url)
            assert end.returncode == 127
            assert end.stderr.endswith(f"write `cove exec --in {id} COMMAND`\n".encode())
    assert b"--in" not in cove("exec", "no-such-program", "ls").stderr


def test_every_subcommand_loads_and_explains_itself() -> None:
    for name in COMMANDS:
        end = subprocess.run([COVE, name, "--help"], capture_output=True, text=True, timeout=60)
        assert end.returncode == 0, end.stderr
        assert f"Usage: cove {name}" in end.stdout


def test_help_takes_the_name_of_a_subcommand() -> None:
    end = subprocess.run([COVE, "help", "session"], capture_output=True, text=True, timeout=60)
    assert (end.returncode, end.stderr) == (0, "")
    assert end.stdout.startswith("Usage: cove session ")


def test_the_overview_fits_a_terminal_and_loads_nothing_of_weight() -> None:
    assert max(map(len, overview().splitlines())) <= 80
    script = "import sys, cove.cli; print({'asyncio', 'typer', 'aiohttp', 'cove.runtime'} & set(sys.modules))"
    end = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert end.stdout == "set()\n"


def test_an_unknown_subcommand_gets_a_line_with_the_nearest_one() -> None:
    end = subprocess.run([COVE, "creat"], capture_output=True, text=True, timeout=60)
    assert (end.returncode, end.stdout) == (125, "")
    assert end.stderr == "cove: there is no command 'creat' (perhaps 'create'): `cove --help` lists them\n"
