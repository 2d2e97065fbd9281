"""Agents for tests: a real one without a jail, and the other end of a socket that says whatever a test wants."""

import array
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cove.core.jail import agent_command
from cove.linux.interpreter import find_interpreter
from cove.runtime.home import Home
from cove.runtime.programs import prepare_agent


def compiled_agent(home: Path) -> tuple[str, Path]:
    """The interpreter that sandboxes use, and the agent compiled for it."""
    interpreter = find_interpreter(0 if os.geteuid() == 0 else None)
    assert interpreter is not None
    Home(home).open()
    return interpreter.path, prepare_agent(home / "agent", interpreter)


@dataclass
class Peer:
    """Our end of a control socket, with blocking calls and a limit of time."""

    sock: socket.socket

    def send(self, *fields: bytes, descriptors: tuple[int, ...] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.sock.sendmsg([b"\0".join(fields)], rights)

    def receive(self) -> tuple[list[bytes], list[int]]:
        packet, ancillary, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(64))
        descriptors: list[int] = []
        for _, _, value in ancillary:
            descriptors += array.array("i", value)
        return packet.split(b"\0"), descriptors


def peers() -> tuple[Peer, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    return Peer(ours), theirs


@contextmanager
def running_agent(home: Path) -> Iterator[tuple[Peer, int]]:
    """A real agent as an ordinary child, which has said hello; afterwards it must end by itself."""
    interpreter, directory = compiled_agent(home)
    peer, theirs = peers()
    with theirs:
        process = subprocess.Popen(
            agent_command([interpreter], str(directory), theirs.fileno(), (1024, 4096), {}, "place=test"),
            pass_fds=[theirs.fileno()],
            env={},
        )
    try:
        assert peer.receive() == ([b"hello"], [])
        yield peer, process.pid
    finally:
        peer.sock.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise


@contextmanager
def launcher_of(agent: Peer) -> Iterator[tuple[Peer, int]]:
    """A launcher of that agent, ready for work."""
    peer, theirs = peers()
    with theirs:
        agent.send(b"launcher", b"1", descriptors=(theirs.fileno(),))
    fields, _ = agent.receive()
    assert fields[:2] == [b"ok", b"1"]
    assert peer.receive() == ([b"ready"], [])
    try:
        yield peer, int(fields[2])
    finally:
        peer.sock.close()
