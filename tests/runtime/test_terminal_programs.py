"""Real programs on a terminal: they see a terminal, and nothing but a terminal."""

import shutil

import pytest
from support.viewers import PROMPT, PS1, plain_shell, python, watch

from cove import AsyncSandbox

pytestmark = pytest.mark.anyio


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


async def test_a_program_has_a_terminal_of_its_own_under_its_right_name() -> None:
    text = """
import os
print([os.isatty(number) for number in (0, 1, 2)], {os.ttyname(number) for number in (0, 1, 2)})
print(os.getsid(0) == os.getpid() == os.tcgetpgrp(0) == os.getpgrp())
print(os.stat("/dev/pts/0").st_rdev == os.fstat(0).st_rdev, os.stat("/dev/pts/0").st_uid == os.getuid())
with open("/dev/tty", "r+b", buffering=0) as own:
    own.write(b"by name\\n")
    print(os.tcgetpgrp(own.fileno()) == os.getpid(), sorted(os.listdir("/dev/pts")), os.listdir("/proc/self/fd")[:-1])
"""
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(text))
        async with watch(terminal) as viewer:
            data, end = await viewer.until_exit()
    assert data.decode().splitlines() == [
        "[True, True, True] {'/dev/pts/0'}",
        "True",
        "True True",
        "by name",
        "True ['0', 'ptmx'] ['0', '1', '2', '3']",
    ]
    assert end.exit_code == 0


async def test_tty_and_the_terminals_type_and_size_are_right() -> None:
    commands = "tty; test -t 0 && test -t 1 && test -t 2 && echo yes; stty size; tput cols; tput lines; tput colors"
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", commands + "; echo $TERM"], cols=123, rows=45)
        async with watch(terminal) as viewer:
            data, _ = await viewer.until_exit()
    assert data.split() == [b"/dev/pts/0", b"yes", b"45", b"123", b"123", b"45", b"256", b"xterm-256color"]


async def test_colour_is_used_because_it_is_a_terminal() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", "tput setaf 1; ls --color=auto -d /usr"])
        async with watch(terminal) as viewer:
            data, _ = await viewer.until_exit()
    assert data.startswith(b"\x1b[31m")
    assert b"\x1b[01;34m/usr\x1b[0m" in data


async def test_a_new_size_is_told_and_true() -> None:
    text = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print(os.get_terminal_size(), flush=True)
for _ in range(2):
    signal.sigwait([signal.SIGWINCH])
    print(os.get_terminal_size(), flush=True)
"""
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(text), cols=81, rows=25)
        async with watch(terminal) as viewer:
            await viewer.wait_for("columns=81, lines=25")
            await terminal.resize(1, 1000)
            await viewer.wait_for("columns=1, lines=1000")
            await viewer.resize(100, 50)
            await viewer.wait_for("columns=100, lines=50")
        assert (terminal.cols, terminal.rows) == (100, 50)


async def test_ctrl_c_interrupts_ctrl_backslash_quits_and_ctrl_d_ends() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=plain_shell(), env=PS1)
        async with watch(terminal) as viewer:
            await viewer.wait_for(PROMPT)
            for key, code in ((b"\x03", "130"), (b"\x1c", "131"), (b"\x04", "0")):
                await viewer.write("cat\nword\n")
                await viewer.wait_for("cat\r\n")
                await viewer.wait_for("word\r\n")
                await viewer.wait_for("word\r\n")
                await viewer.write(key)
                await viewer.wait_for(PROMPT)
                await viewer.write("echo code $?\n")
                await viewer.wait_for(f"\r\ncode {code}\r\n{PROMPT.decode()}")
            await viewer.write("(exit 9)\n")
            await viewer.wait_for(PROMPT)
            await viewer.write(b"\x04")
            assert (await viewer.until_exit())[1].exit_code == 9


async def test_job_control_works() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=plain_shell(), env=PS1)
        async with watch(terminal) as viewer:
            await viewer.wait_for(PROMPT)
            await viewer.write("cat\none\n")
            await viewer.wait_for("one\r\n")
            await viewer.wait_for("one\r\n")
            await viewer.write(b"\x1a")
            await viewer.wait_for("Stopped")
            await viewer.wait_for(PROMPT)
            await viewer.write("sleep 1000 &\n")
            await viewer.wait_for("[2] ")
            await viewer.wait_for(PROMPT)
            await viewer.write("jobs -r; jobs -s\n")
            await viewer.wait_for("Running")
            await viewer.wait_for("Stopped")
            await viewer.wait_for(PROMPT)
            await viewer.write("fg %1\n")
            await viewer.wait_for("fg %1\r\ncat\r\n")
            await viewer.write("two\n")
            await viewer.wait_for("two\r\ntwo\r\n")
            await viewer.write(b"\x03")
            await viewer.wait_for(PROMPT)
            await viewer.write("kill %2; wait; bg; exit 0\n")
            assert (await viewer.until_exit())[1].exit_code == 0


@needs("less")
async def test_less_shows_pages_and_leaves_the_screen_as_it_was() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("seq -f 'line %g.' 1 1000 > /tmp/lines")
        terminal = await sandbox.terminal(shell=["less", "/tmp/lines"], cols=80, rows=10)
        async with watch(terminal) as viewer:
            await viewer.wait_for("\x1b[?1049h")
            await viewer.wait_for("line 9.")
            await viewer.write("G")
            await viewer.wait_for("line 1000.")
            await viewer.write("g/line 550\n")
            await viewer.wait_for("line 556.")
            await viewer.write("q")
            data, end = await viewer.until_exit()
    assert b"\x1b[?1049l" in data
    assert end.exit_code == 0


@needs("top")
async def test_top_prints_its_table() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["top", "-b", "-n1"])
        async with watch(terminal) as viewer:
            data, end = await viewer.until_exit()
    assert b"load average" in data
    assert b" PID " in data
    assert end.exit_code == 0


async def test_a_python_prompt_answers_and_ends() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["python3", "-q"], env={"PYTHON_BASIC_REPL": "1"})
        async with watch(terminal) as viewer:
            await viewer.wait_for(">>> ")
            await viewer.write("6 * 7\r")
            await viewer.wait_for("42\r\n")
            await viewer.write("while True: pass\r\r")
            await viewer.wait_for("... \r\n")
            await viewer.write(b"\x03")
            await viewer.wait_for("KeyboardInterrupt")
            await viewer.write("exit(7)\r")
            assert (await viewer.until_exit())[1].exit_code == 7


@needs("vim")
async def test_vim_draws_the_screen_and_writes_a_file() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["vim", "-u", "NONE", "-N", "/tmp/new"], cols=60, rows=12)
        async with watch(terminal) as viewer:
            await viewer.wait_for("\x1b[?1049h")
            await viewer.wait_for("[New]")
            await viewer.write("igrüße\x1b:wq\r")
            _, end = await viewer.until_exit()
        assert end.exit_code == 0
        assert (await sandbox.exec("cat /tmp/new")).stdout == "grüße\n"


async def test_a_full_screen_program_redraws_itself_when_the_size_changes() -> None:
    text = """
import curses, os

def run(screen):
    key = 0
    while key != ord("q"):
        cols, rows = os.get_terminal_size()
        curses.resize_term(rows, cols)
        screen.erase()
        screen.addstr(rows - 1, 0, f"corner {cols}x{rows}")
        screen.refresh()
        key = screen.getch()

curses.wrapper(run)
print("left")
"""
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(text), cols=70, rows=15)
        async with watch(terminal) as viewer:
            await viewer.wait_for("\x1b[?1049h")
            await viewer.wait_for("corner 70x15")
            await viewer.resize(50, 10)
            await viewer.write("r")
            await viewer.wait_for("corner 50x10")
            await viewer.write("q")
            data, _ = await viewer.until_exit()
    assert data.endswith(b"left\r\n")


@pytest.mark.parametrize(
    "shell",
    [
        ["bash", "-c", 'read -s -p "Password: " word; echo; echo "length ${#word}"'],
        python("import getpass; print('length', len(getpass.getpass('Password: ')))"),
    ],
    ids=["read -s", "getpass"],
)
async def test_what_is_typed_at_a_password_prompt_is_not_shown(shell: list[str]) -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=shell)
        async with watch(terminal) as viewer:
            await viewer.wait_for("Password: ")
            await viewer.write("hunter2\n")
            data, _ = await viewer.until_exit()
        assert data == b"\r\nlength 7\r\n"
        async with watch(terminal) as late:
            assert b"hunter" not in (await late.until_exit())[0]


async def test_backspace_takes_a_whole_character_away() -> None:
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=["bash", "-c", 'read line; printf %s "$line" | od -An -c'])
        async with watch(terminal) as viewer:
            await viewer.write("aü€𝄞\x7f\x7f\x7fb\n")
            data, _ = await viewer.until_exit()
    assert data.rpartition(b"\b")[2].split()[-2:] == [b"a", b"b"]


async def test_a_program_in_raw_mode_gets_every_byte_as_it_was_typed() -> None:
    text = """
import os, tty
tty.setraw(0)
os.write(1, b"raw")
seen = b""
while len(seen) < 512:
    seen += os.read(0, 512)
print(seen == bytes(range(256)) * 2, end="")
"""
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(text))
        async with watch(terminal) as viewer:
            await viewer.wait_for("raw")
            await viewer.write(bytes(range(256)) * 2)
            assert (await viewer.until_exit())[0] == b"True"
