"""The agent by itself: a real process at the other end of a socket, without a jail."""

import os
import re
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from support.fake_agent import Peer, compiled_agent, launcher_of, running_agent

from cove.linux.descriptors import sealed_file

# What the agent loads, until it can fork its first launcher, beyond what Python itself loads before the first line
# runs. Each costs start-up time.
OWN = {"cove.agent.kernel", "cove.agent.launcher", "cove.agent.protocol", "cove.agent.spawn"}
MODULES = {"_ctypes", "_socket", "errno", "fcntl", "resource", "select"} | OWN


HEEDLESS = b"trap '' TERM HUP; setsid sh -c 'trap \"\" TERM; sleep 1000' & echo up; sleep 1000"


def pipe_pair() -> tuple[int, int]:
    return os.pipe2(os.O_CLOEXEC)


def spawn(launcher: Peer, *argv: bytes, cwd: bytes = b"/", env: tuple[bytes, ...] = (b"PATH=/usr/bin:/bin",)) -> int:
    """Start a command with a pipe as stdout; returns its read end."""
    read, write = pipe_pair()
    launcher.send(b"spawn", cwd, b"1", b"", b"", b"%d" % len(argv), *argv, *env, descriptors=(write,))
    os.close(write)
    return read


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def test_the_agent_loads_exactly_these_modules(cove_home: Path) -> None:
    interpreter, directory = compiled_agent(cove_home)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.shutdown(socket.SHUT_WR)
    with ours, theirs:
        agent = subprocess.run(
            [
                *(interpreter, "-I", "-S", "-B", "-X", "importtime", str(directory / "init.pyc")),
                *(str(directory), str(theirs.fileno()), "1024", "4096"),
            ],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
        )
    bare = subprocess.run([interpreter, "-I", "-S", "-X", "importtime", "-c", ""], capture_output=True, text=True)
    assert imported(agent.stderr) - imported(bare.stderr) == MODULES


def imported(report: str) -> set[str]:
    return {match[1] for match in re.finditer(r"^import time:.*\|\s*(\S+)$", report, re.MULTILINE)} - {"package"}


def test_the_agent_ends_when_its_socket_closes_and_leaves_nothing(cove_home: Path) -> None:
    with running_agent(cove_home) as (agent, _), launcher_of(agent) as (launcher, _):
        os.close(spawn(launcher, b"sh", b"-c", b"setsid sleep 1000 & sleep 1000"))
        assert launcher.receive()[0][0] == b"started"


def test_a_spawned_command_reports_how_it_ended_and_that_nothing_is_left(cove_home: Path) -> None:
    with running_agent(cove_home) as (agent, _), launcher_of(agent) as (launcher, _):
        output = spawn(launcher, b"sh", b"-c", b"echo $A; exit 7", env=(b"A=b=c", b"PATH=/bin"))
        assert launcher.receive()[0][0] == b"started"
        fields, _ = launcher.receive()
        assert (fields[0], os.waitstatus_to_exitcode(int(fields[1])), fields[5]) == (b"exit", 7, b"1")
        assert all(field.isdigit() for field in fields[1:5])
        assert read_all(output) == b"b=c\n"


@pytest.mark.parametrize(
    ("argv", "cwd", "answer"),
    [
        ((b"nosuch",), b"/", [b"refused", b"program", b"2"]),
        ((b"/etc/passwd",), b"/", [b"refused", b"program", b"13"]),
        ((b"true",), b"/nosuch", [b"refused", b"cwd", b"2"]),
        ((b"true",), b"/etc/passwd", [b"refused", b"cwd", b"20"]),
    ],
)
def test_what_cannot_be_started_is_refused_with_the_reason(
    cove_home: Path, argv: tuple[bytes, ...], cwd: bytes, answer: list[bytes]
) -> None:
    with running_agent(cove_home) as (agent, _), launcher_of(agent) as (launcher, _):
        os.close(spawn(launcher, *argv, cwd=cwd))
        assert launcher.receive()[0] == answer
        output = spawn(launcher, b"pwd")
        assert launcher.receive()[0][0] == b"started"
        assert read_all(output) == b"/\n"


def test_a_launcher_says_when_the_last_of_the_tree_is_gone(cove_home: Path) -> None:
    with running_agent(cove_home) as (agent, _), launcher_of(agent) as (launcher, _):
        read, write = pipe_pair()
        gate = f"/proc/{os.getpid()}/fd/{read}".encode()
        os.close(spawn(launcher, b"sh", b"-c", b"(setsid head -c1 " + gate + b" &) ; exit 0"))
        assert launcher.receive()[0][0] == b"started"
        fields, _ = launcher.receive()
        assert (fields[0], fields[5]) == (b"exit", b"0")
        os.write(write, b"x")
        assert launcher.receive() == ([b"empty"], [])
        os.close(read)
        os.close(write)


def test_a_signal_reaches_everything_below_the_launcher(cove_home: Path) -> None:
    with running_agent(cove_home) as (agent, _), launcher_of(agent) as (launcher, _):
        output = spawn(launcher, b"sh", b"-c", b"setsid sleep 1000 & echo up; wait; sleep 1000")
        assert launcher.receive()[0][0] == b"started"
        assert os.read(output, 10) == b"up\n"
        launcher.send(b"signal", b"9", b"tree", b"", b"0")
        fields, _ = launcher.receive()
        assert fields[0] == b"signaled"
        assert int(fields[1]) >= 2
        fields, _ = launcher.receive()
        assert (fields[0], os.waitstatus_to_exitcode(int(fields[1]))) == (b"exit", -9)
        if fields[5] == b"0":
            assert launcher.receive() == ([b"empty"], [])
        os.close(output)


def test_drained_pipes_are_read_to_their_end_for_nobody(cove_home: Path) -> None:
    with running_agent(cove_home) as (agent, _), launcher_of(agent) as (launcher, _):
        read, write = pipe_pair()
        launcher.send(b"drain", descriptors=(read,))
        os.close(read)
        with os.fdopen(write, "wb") as file:
            file.write(bytes(1 << 20))
        output = spawn(launcher, b"echo", b"on")
        assert launcher.receive()[0][0] == b"started"
        assert read_all(output) == b"on\n"


def test_end_kills_a_launcher_with_all_it_started_and_answers_when_they_are_gone(cove_home: Path) -> None:
    with running_agent(cove_home) as (agent, agent_pid), launcher_of(agent) as (launcher, pid):
        output = spawn(launcher, b"sh", b"-c", HEEDLESS)
        assert launcher.receive()[0][0] == b"started"
        assert os.read(output, 10) == b"up\n"
        agent.send(b"end", b"5", b"%d" % pid)
        assert agent.receive() == ([b"ok", b"5"], [])
        children = Path(f"/proc/{agent_pid}/task/{agent_pid}/children").read_text()
        assert children == ""
        assert read_all(output) == b""


def test_files_are_opened_and_described(cove_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with running_agent(cove_home) as (agent, _):
        agent.send(b"open", b"1", b"0", b"0", bytes(file))
        fields, (descriptor,) = agent.receive()
        assert fields == [b"ok", b"1"]
        assert read_all(descriptor) == b"content"
        agent.send(b"stat", b"2", b"1", bytes(file))
        fields, _ = agent.receive()
        assert fields[:2] == [b"ok", b"2"]
        assert stat.S_ISREG(int(fields[2]))
        assert int(fields[3]) == 7
        agent.send(b"open", b"3", b"0", b"0", b"/no/such")
        assert agent.receive() == ([b"error", b"3", b"2"], [])
        agent.send(b"open", b"4", b"0", b"0", bytes(fifo))
        fields, (descriptor,) = agent.receive()
        assert fields == [b"ok", b"4"]
        os.close(descriptor)


def test_small_files_are_read_and_replaced_by_one_request(cove_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "new/file"
    with running_agent(cove_home) as (agent, _):
        agent.send(b"write", b"1", b"416", bytes(file), b"one\0two\0\0")
        assert agent.receive() == ([b"ok", b"1"], [])
        assert file.read_bytes() == b"one\0two\0\0"
        assert file.stat().st_mode & 0o777 == 0o640
        agent.send(b"read", b"2", b"10", bytes(file))
        assert agent.receive() == ([b"ok", b"2", b"one", b"two", b"", b""], [])
        agent.send(b"read", b"3", b"8", bytes(file))
        fields, (descriptor,) = agent.receive()
        assert fields == [b"ok", b"3", b""]
        assert read_all(descriptor) == b"one\0two\0\0"
        agent.send(b"write", b"4", b"", bytes(tmp_path), b"x")
        assert agent.receive() == ([b"error", b"4", b"21"], [])
        assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_a_request_larger_than_a_packet_comes_in_a_memory_file(cove_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    content = bytes(range(256)) * 1000
    with running_agent(cove_home) as (agent, _):
        with sealed_file(b"\0".join([b"write", b"1", b"", bytes(file), content])) as memory:
            agent.send(b"large", descriptors=(memory.fileno(),))
        assert agent.receive() == ([b"ok", b"1"], [])
        assert file.read_bytes() == content
        with sealed_file(b"\0".join([b"stat", b"2", b"1", b"/" + b"x" * 100_000])) as memory:
            agent.send(b"large", descriptors=(memory.fileno(),))
        assert agent.receive() == ([b"error", b"2", b"36"], [])


def test_a_port_is_connected_to_and_the_socket_comes_out(cove_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, running_agent(cove_home) as (agent, _):
        port = server.getsockname()[1]
        agent.send(b"connect", b"1", b"127.0.0.1", b"%d" % port)
        fields, (descriptor,) = agent.receive()
        assert fields == [b"ok", b"1"]
        connection, _ = server.accept()
        with connection, socket.socket(fileno=descriptor) as client:
            client.setblocking(True)
            client.sendall(b"hi")
            assert connection.recv(2) == b"hi"
    with running_agent(cove_home) as (agent, _):
        agent.send(b"connect", b"2", b"127.0.0.1", b"%d" % port)
        assert agent.receive() == ([b"error", b"2", b"111"], [])


@pytest.mark.parametrize("packet", [(b"nosuch", b"1"), (b"launcher",), (b"end", b"1", b"x"), (b"open", b"1"), (b"",)])
def test_a_request_that_makes_no_sense_ends_the_agent_and_all_it_started(
    cove_home: Path, packet: tuple[bytes, ...]
) -> None:
    with running_agent(cove_home) as (agent, _), launcher_of(agent) as (launcher, _):
        os.close(spawn(launcher, b"sleep", b"1000"))
        assert launcher.receive()[0][0] == b"started"
        agent.send(*packet)
        assert agent.sock.recv(100) == b""
