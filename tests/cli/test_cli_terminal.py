"""`cove shell --in`: a terminal of a server, left and come back to through a real pty."""

import os
import select
import signal
from contextlib import AbstractContextManager

import pytest
from support.commands import Cli, cli_of_module, cli_with_server, sandbox_of_test
from support.user_terminal import PROMPT, User, cove_shell

pytestmark = pytest.mark.pure
cove = cli_of_module
sandbox = sandbox_of_test

PLAIN = ("--env", "PS1=in> ")
BASH = ("--", "bash", "--norc", "--noediting")
DETACH = b"\x1d"


def shell(cove: Cli, sandbox: str, *options: str, program: tuple[str, ...] = BASH) -> AbstractContextManager[User]:
    server = ("--url", cove.server.url, "--api-key", cove.server.key)
    return cove_shell(*server, "--in", sandbox, *PLAIN, *options, *program)


def test_it_is_left_with_a_key_and_found_again_as_it_was(cove: Cli, sandbox: str) -> None:
    with shell(cove, sandbox, "--terminal", "main") as user:
        before = user.modes()
        user.wait_for(PROMPT)
        user.run(b"kept=here")
        user.type(b"echo on the way" + DETACH)
        assert user.exit_code() == 0
        assert user.modes() == before
        assert f"cove shell --in {sandbox} --terminal main".encode() in user.screen()
    with shell(cove, sandbox, "--terminal", "main") as user:
        user.wait_for(b"kept=here")
        user.wait_for(b"echo on the way")
        user.type(b"\n")
        user.wait_for(b"on the way\r\n")
        user.wait_for(PROMPT)
        assert user.run(b"echo $kept") == b"here\r\n"
        user.type(b"exit 7\n")
        assert user.exit_code() == 7
        assert b"to come back" not in user.screen()


def test_without_a_name_it_gets_one_that_is_told(cove: Cli, sandbox: str) -> None:
    with shell(cove, sandbox) as user:
        user.wait_for(PROMPT)
        user.type(DETACH)
        assert user.exit_code() == 0
        name = user.screen().split(b"--terminal ")[1].split()[0].decode()
    with shell(cove, sandbox, "--terminal", name) as user:
        user.wait_for(PROMPT)
        user.type(b"\x04")
        assert user.exit_code() == 0


def test_a_window_that_is_closed_leaves_the_terminal_running(cove: Cli, sandbox: str) -> None:
    with shell(cove, sandbox, "--terminal", "main") as user:
        user.wait_for(PROMPT)
        user.run(b"kept=here")
        os.close(user.slave)
        os.close(user.master)
        user.slave = user.master = -1
        assert user.program.wait(60) == 128 + signal.SIGHUP
    with shell(cove, sandbox, "--terminal", "main") as user:
        user.wait_for(PROMPT)
        user.wait_for(PROMPT)
        assert user.run(b"echo $kept") == b"here\r\n"
        user.type(b"exit\n")
        assert user.exit_code() == 0


def test_two_people_see_the_same_terminal(cove: Cli, sandbox: str) -> None:
    with shell(cove, sandbox, "--terminal", "main") as one:
        one.wait_for(PROMPT)
        with shell(cove, sandbox, "--terminal", "main") as other:
            other.wait_for(PROMPT)
            one.type(b"echo $((6 * 7))\n")
            other.wait_for(b"42\r\n")
            other.type(b"exit 3\n")
            assert other.exit_code() == 3
        assert one.exit_code() == 3


def test_the_size_is_that_of_the_window_that_came_last(cove: Cli, sandbox: str) -> None:
    with shell(cove, sandbox) as user:
        user.wait_for(PROMPT)
        user.set_size(101, 37)
        while user.run(b"stty size") != b"37 101\r\n":
            pass
        user.type(b"exit\n")
        assert user.exit_code() == 0


def test_the_key_to_leave_can_be_another_or_none(cove: Cli, sandbox: str) -> None:
    with shell(cove, sandbox, "--detach-key", "none", program=("--", "cat", "-v")) as user:
        user.type(DETACH + b"\n")
        user.wait_for(b"^]\r\n")
        user.wait_for(b"^]\r\n")
        user.type(b"\x04")
        assert user.exit_code() == 0
    with shell(cove, sandbox, "--detach-key", "ctrl-a") as user:
        user.wait_for(PROMPT)
        user.type(b"\x01")
        assert user.exit_code() == 0
    with shell(cove, sandbox, "--detach-key", "hyper-q") as user:
        assert user.exit_code() == 125
        assert b"--detach-key hyper-q" in user.screen()


def test_it_goes_on_when_the_servers_workers_are_killed() -> None:
    with cli_with_server() as cove, cove.sandbox() as sandbox, shell(cove, sandbox) as user:
        user.wait_for(PROMPT)
        for pid, role in cove.server.children().items():
            if role == "worker":
                os.kill(pid, signal.SIGKILL)
        seen = b""
        while b"42\r\n" not in seen:  # what is typed at the very moment may be lost, as on a bad line
            user.type(b"echo $((6 * 7))\n")
            while select.select([user.master], [], [], 0.5)[0]:
                seen += user.read()
        user.type(b"exit\n")
        assert user.exit_code() == 0


def test_a_terminal_by_name_needs_a_sandbox_that_stays() -> None:
    with cove_shell("--terminal", "main") as user:
        assert user.exit_code() == 125
        assert b"say which with --in" in user.screen()
