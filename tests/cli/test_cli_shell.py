"""`cove shell`, driven through a real terminal by a user who types, resizes and goes away."""

import os
import select
import signal
import subprocess

import pytest
from support.inside import init_below, is_alive
from support.leaks import processes_below
from support.user_terminal import COVE, PLAIN_SHELL, PROMPT, User, cove_shell

pytestmark = pytest.mark.pure


def start_cat(user: User) -> None:
    """Until it answers, so that it has the terminal."""
    user.wait_for(PROMPT)
    user.type(b"cat\n")
    user.type(b"word\n")
    user.wait_for(b"word\r\n")
    user.wait_for(b"word\r\n")


def python(text: str) -> tuple[str, ...]:
    return ("--", "python3", "-I", "-S", "-c", text)


def test_keys_go_in_output_comes_out_and_the_exit_code_is_the_shells() -> None:
    with cove_shell(*PLAIN_SHELL) as user:
        before = user.modes()
        user.wait_for(PROMPT)
        assert user.is_raw()
        assert user.run(b"echo $((6 * 7)) $TERM $(tty)") == b"42 xterm-256color /dev/pts/0\r\n"
        user.type(b"exit 7\n")
        assert user.exit_code() == 7
        assert user.modes() == before


def test_the_shell_is_a_bash_with_a_prompt_unless_another_program_is_named() -> None:
    with cove_shell() as user:
        user.wait_for(b"$ ")
        user.type(b"echo $BASH-$0; exit\r")
        user.wait_for(b"/bin/bash-")
        assert user.exit_code() == 0


def test_a_shell_that_dies_of_a_signal_ends_it_with_128_and_the_number() -> None:
    with cove_shell("--", "bash", "-c", "kill -KILL $$") as user:
        assert user.exit_code() == 128 + signal.SIGKILL


def test_the_window_size_is_that_of_the_users_terminal() -> None:
    with cove_shell(*PLAIN_SHELL, cols=101, rows=37) as user:
        user.wait_for(PROMPT)
        assert user.run(b"stty size") == b"37 101\r\n"
        user.type(b"exit\n")
        assert user.exit_code() == 0


def test_a_change_of_the_window_size_reaches_the_program_inside() -> None:
    text = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print("waiting", flush=True)
while os.get_terminal_size() != (55, 20):
    signal.sigwait([signal.SIGWINCH])
print("told", flush=True)
"""
    with cove_shell(*python(text)) as user:
        user.wait_for(b"waiting")
        user.set_size(55, 20)
        user.wait_for(b"told")
        assert user.exit_code() == 0


def test_a_terminal_without_a_size_or_larger_than_any_gets_one_that_works() -> None:
    with cove_shell("--", "stty", "size", cols=0, rows=0) as user:
        user.wait_for(b"24 80\r\n")
        assert user.exit_code() == 0
    with cove_shell("--", "stty", "size", cols=5000, rows=5) as user:
        user.wait_for(b"5 1000\r\n")
        assert user.exit_code() == 0


def test_ctrl_c_interrupts_the_program_inside_and_nothing_else() -> None:
    with cove_shell(*PLAIN_SHELL) as user:
        start_cat(user)
        user.type(b"\x03")
        user.wait_for(PROMPT)
        assert user.run(b"echo $?") == b"130\r\n"
        user.type(b"exit\n")
        assert user.exit_code() == 0


def test_ctrl_z_stops_the_program_inside_and_fg_continues_it() -> None:
    with cove_shell(*PLAIN_SHELL) as user:
        start_cat(user)
        user.type(b"\x1a")
        user.wait_for(b"Stopped")
        user.wait_for(PROMPT)
        assert user.run(b"echo here") == b"here\r\n"
        user.type(b"fg\n")
        user.wait_for(b"fg\r\ncat\r\n")
        user.type(b"other\n")
        user.wait_for(b"other\r\nother\r\n")
        user.type(b"\x04")
        user.wait_for(PROMPT)
        user.type(b"exit\n")
        assert user.exit_code() == 0


def test_ctrl_d_at_the_prompt_ends_the_shell() -> None:
    with cove_shell(*PLAIN_SHELL) as user:
        user.wait_for(PROMPT)
        user.run(b"(exit 5)")
        user.type(b"\x04")
        assert user.exit_code() == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_ends_it_with_the_terminal_restored(number: signal.Signals) -> None:
    with cove_shell(*PLAIN_SHELL) as user:
        before = user.modes()
        user.wait_for(PROMPT)
        user.program.send_signal(number)
        assert user.exit_code() == 128 + number
        assert user.modes() == before


def test_a_signal_ends_it_while_nobody_reads_its_output() -> None:
    with cove_shell("--", "yes") as user:
        before = user.modes()
        user.wait_for(b"y\r\n")
        user.program.send_signal(signal.SIGTERM)
        assert user.program.wait(60) == 128 + signal.SIGTERM
        assert user.modes() == before


def test_a_sandbox_that_is_killed_ends_it_with_125_and_the_terminal_restored() -> None:
    with cove_shell(*PLAIN_SHELL) as user:
        before = user.modes()
        user.wait_for(PROMPT)
        os.kill(init_below(user.program.pid), signal.SIGKILL)
        assert user.exit_code() == 125
        assert b"cove: the sandbox was lost" in user.screen()
        assert user.modes() == before


def test_a_terminal_that_is_taken_away_ends_it_and_its_sandbox() -> None:
    with cove_shell(*PLAIN_SHELL) as user:
        user.wait_for(PROMPT)
        below = processes_below(user.program.pid)
        assert below
        os.close(user.slave)
        os.close(user.master)
        user.slave = user.master = -1
        assert user.program.wait(60) == 128 + signal.SIGHUP
        assert not [pid for pid in below if is_alive(pid)]


def test_when_it_is_stopped_the_terminal_is_the_users_and_when_it_goes_on_it_is_raw_again() -> None:
    with cove_shell(*PLAIN_SHELL) as user:
        before = user.modes()
        user.wait_for(PROMPT)
        user.program.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(user.program.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert user.modes() == before
        user.set_size(90, 30)
        user.program.send_signal(signal.SIGCONT)
        while not user.is_raw():
            select.select([], [], [], 0.001)
        while user.run(b"stty size") != b"30 90\r\n":
            pass
        user.type(b"exit\n")
        assert user.exit_code() == 0
        assert user.modes() == before


def test_every_byte_passes_in_both_directions_unchanged() -> None:
    data = bytes(range(256)) * 40
    text = f"""
import os, tty
tty.setraw(0)
os.write(1, b"ready")
left = {len(data)}
while left:
    data = os.read(0, left)
    left -= len(data)
    while data:
        data = data[os.write(1, data):]
"""
    with cove_shell(*python(text)) as user:
        user.wait_for(b"ready")
        seen = b""
        for start in range(0, len(data), 256):
            user.type(data[start : start + 256])
            while len(seen) < start + 256:
                seen += user.read()
        assert seen == data
        assert user.exit_code() == 0


def test_a_screen_slower_than_the_program_misses_nothing() -> None:
    size = 8_000_000
    with cove_shell("--", "bash", "-c", f"seq -w 1 {size // 10} | tr '\\n' -; exit 3") as user:
        user.wait_for(b"000001-")
        # Nobody reads for a while, in which the program could print everything if it were not held back.
        select.select([], [], [], 0.5)
        seen = bytearray(b"000001-")
        while len(seen) < size // 10 * 7:
            seen += user.read()
        assert bytes(seen) == b"".join(b"%06d-" % number for number in range(1, size // 10 + 1))
        assert user.exit_code() == 3


def test_a_question_to_the_terminal_is_answered_by_the_users_terminal_alone() -> None:
    questions = rb"\x1b[6n\x1b[c\x1b[>c\x1b]10;?\x07\x1b[18t\x1bP$qm\x1b\\"
    text = f"""
import os, tty
tty.setraw(0)
os.write(1, b"{questions.decode()}")
seen = b""
while not seen.endswith(b"."):
    seen += os.read(0, 4096)
os.write(1, b"<" + seen + b">")
"""
    with cove_shell(*python(text)) as user:
        user.wait_for(questions.decode("unicode_escape").encode("latin-1"))
        user.type(b"my own answer.")
        assert user.wait_for(b">") == b"<my own answer.>"
        assert user.exit_code() == 0


def test_input_that_a_program_pushes_stays_inside() -> None:
    text = """
import fcntl, os, termios
for path in ("/dev/tty", "/dev/stdin", "/dev/pts/0"):
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
        for byte in b"echo intruder\\n":
            fcntl.ioctl(descriptor, termios.TIOCSTI, bytes([byte]))
    except OSError as error:
        print(error.errno)
print("tried", flush=True)
"""
    with cove_shell(*python(text)) as user:
        user.wait_for(b"tried")
        assert user.exit_code() == 0
        assert user.unread_input() == 0


def test_without_a_terminal_it_says_what_to_do_and_ends_with_125() -> None:
    end = subprocess.run([COVE, "shell"], input=b"ls\n", capture_output=True, timeout=60)
    assert (end.returncode, end.stdout) == (125, b"")
    assert end.stderr == b"cove: standard input is not a terminal: `cove exec` takes pipes and files\n"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--cwd", "/no/such/place"), b"/no/such/place"),
        (("--", "no-such-program"), b"no-such-program: command not found"),
        (("--env", "NAME"), b"write it as NAME=VALUE"),
        (("--mount", "/tmp"), b"write it as SRC:DST"),
    ],
)
def test_what_cannot_be_started_ends_with_125_and_leaves_the_terminal_alone(
    arguments: tuple[str, ...], advice: bytes
) -> None:
    with cove_shell(*arguments) as user:
        before = user.modes()
        assert user.exit_code() == 125
        assert user.modes() == before
        assert advice in user.screen()
        assert user.screen().count(b"cove:") == 1
        assert b"Traceback" not in user.screen()


def test_its_options_shape_the_sandbox() -> None:
    with cove_shell("--env", "A=x y", "--cwd", "/tmp", "--", "sh", "-c", 'echo "$A $PWD"; ls /proc/net/dev') as user:
        user.wait_for(b"x y /tmp\r\n")
        assert user.exit_code() == 0
    with cove_shell("--isolation", "none", "--", "sh", "-c", "echo free") as user:
        user.wait_for(b"cove: no isolation: code in this sandbox can do whatever you can\r\n")
        user.wait_for(b"free\r\n")
        assert user.exit_code() == 0


def test_output_into_a_pipe_that_nobody_reads_ends_it_quietly() -> None:
    read, write = os.pipe()
    with cove_shell("--", "yes", stdout=write) as user:
        os.close(write)
        assert os.read(read, 2) == b"y\r"
        os.close(read)
        assert user.program.wait(60) == 128 + signal.SIGPIPE


def test_keys_typed_before_the_shell_is_there_are_not_lost() -> None:
    with cove_shell("--", "bash", "-c", 'read -r line; echo "got $line"') as user:
        user.type(b"early\n")
        user.wait_for(b"got early\r\n")
        assert user.exit_code() == 0
