"""A terminal is no way out of the sandbox, nor into another terminal."""

import os

import pytest
from support.viewers import python, watch

from cove import AsyncSandbox
from cove.linux.descriptors import Kind, is_kind

pytestmark = pytest.mark.anyio

# Pushes input into every terminal it can open, by name, and into what it was given; prints how each try ended.
PUSH = """
import errno, fcntl, os, sys, termios
TIOCLINUX = 0x541C
for path in sys.argv[1:]:
    for request, argument in ((termios.TIOCSTI, b"!"), (TIOCLINUX, bytes([2, 0])), (TIOCLINUX, bytes([3]))):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY)
            fcntl.ioctl(descriptor, request, argument)
            print(path, "done")
        except OSError as error:
            print(path, errno.errorcode[error.errno])
print("tried")
"""


async def test_no_input_can_be_pushed_into_another_terminal() -> None:
    async with AsyncSandbox.create() as sandbox:
        victim = await sandbox.terminal(shell=["cat"])
        attacker = await sandbox.terminal(shell=[*python(PUSH), "/dev/pts/0"])
        async with watch(victim) as screen, watch(attacker) as viewer:
            data, _ = await viewer.until_exit()
            assert data.split(b"\r\n")[0] in (b"/dev/pts/0 EPERM", b"/dev/pts/0 EIO")
            assert b"done" not in data
            assert b"tried" in data
            await screen.write("own\n")
            assert await screen.wait_for("own\r\nown\r\n") == b"own\r\nown\r\n"


async def test_a_command_without_a_terminal_finds_none_to_push_into() -> None:
    async with AsyncSandbox.create() as sandbox:
        victim = await sandbox.terminal(shell=["cat"])
        paths = ["/dev/tty", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/pts/0", "/dev/stdin", "/proc/1/fd/0"]
        result = await sandbox.exec([*python(PUSH), *paths])
        assert result.ok
        assert "done" not in result.stdout
        async with watch(victim) as screen:
            await screen.write("own\n")
            assert await screen.wait_for("own\r\nown\r\n") == b"own\r\nown\r\n"


async def test_the_terminals_of_another_sandbox_are_not_there() -> None:
    async with AsyncSandbox.create() as one, AsyncSandbox.create() as other:
        victim = await one.terminal(shell=["cat"])
        assert (await one.exec("ls /dev/pts")).stdout.split() == ["0", "ptmx"]
        assert (await other.exec("ls /dev/pts")).stdout.split() == ["ptmx"]
        attacker = await other.terminal(shell=[*python(PUSH), "/dev/pts/0", "/dev/pts/1"])
        async with watch(attacker) as viewer, watch(victim) as screen:
            data, _ = await viewer.until_exit()
            assert b"/dev/pts/1 ENOENT" in data
            await screen.write("own\n")
            assert await screen.wait_for("own\r\nown\r\n") == b"own\r\nown\r\n"


QUESTIONS = [
    b"\x1b[6n",  # where is the cursor
    b"\x1b[c\x1b[>c\x1b[=c\x1bZ\x05",  # who are you
    b"\x1b[5n\x1b[18t\x1b[21t",  # status, size, title
    b"\x1b]10;?\x07\x1b]52;c;?\x07",  # colour, clipboard
    b"\x1bP$qm\x1b\\\x1bP+q544e\x1b\\",  # settings, capabilities
    b"\x1b[?1$p\x1b[x",  # modes, parameters
]


async def test_questions_to_the_terminal_are_shown_and_not_answered_by_us() -> None:
    questions = b"".join(QUESTIONS)
    text = f"""
import os, tty
tty.setraw(0)
os.write(1, {questions!r})
seen = b""
while not seen.endswith(b"."):
    seen += os.read(0, 4096)
os.write(1, b"<" + seen + b">")
"""
    async with AsyncSandbox.create() as sandbox:
        terminal = await sandbox.terminal(shell=python(text))
        async with watch(terminal) as one, watch(terminal) as other:
            assert await one.wait_for(questions) == questions
            assert await other.wait_for(questions) == questions
            await one.write("typed.")
            assert (await one.until_exit())[0] == b"<typed.>"


async def test_a_terminal_can_be_neither_hung_up_nor_taken_over_from_inside() -> None:
    text = """
import ctypes, errno, fcntl, os, sys, termios
libc = ctypes.CDLL(None, use_errno=True)
print("vhangup", libc.vhangup(), errno.errorcode[ctypes.get_errno()])
os.setsid() if os.getpid() != os.getsid(0) else None
for name, request, argument in (("steal", termios.TIOCSCTTY, 1), ("console", termios.TIOCCONS, 0)):
    try:
        descriptor = os.open("/dev/pts/0", os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(descriptor, request, argument)
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""
    async with AsyncSandbox.create() as sandbox:
        victim = await sandbox.terminal(shell=["cat"])
        result = await sandbox.exec(python(text))
        assert result.stdout.splitlines() == ["vhangup -1 EPERM", "steal EPERM", "console EPERM"]
        async with watch(victim) as screen:
            await screen.write("own\n")
            await screen.wait_for("own\r\nown\r\n")


def test_only_a_terminal_is_taken_for_one() -> None:
    master, slave = os.openpty()
    null = os.open("/dev/null", os.O_RDWR)
    read, write = os.pipe()
    kinds = (Kind.TERMINAL_MASTER, Kind.TERMINAL_SLAVE)
    found = {number: [is_kind(number, kind) for kind in kinds] for number in (master, slave, null, read)}
    assert found == {master: [True, False], slave: [False, True], null: [False, False], read: [False, False]}
    for descriptor in (master, slave, null, read, write):
        os.close(descriptor)
