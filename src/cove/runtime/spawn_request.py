"""The request that a launcher spawns a process by: its packet, and the descriptors that go with it."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from cove.agent.protocol import encode
from cove.core.command import STATE_DESCRIPTOR, Invocation
from cove.core.output_log import STDERR, STDOUT
from cove.linux.descriptors import sealed_file

# By stream: the end that is read here, and the end that is given away.
Pipes = Mapping[int, tuple[int, int]]


def make_pipes(kept: ExitStack, given: ExitStack) -> Pipes:
    """The pipes of both streams: their write ends are closed with `given`, their read ends with `kept`."""
    return {stream: _make_pipe(kept, given) for stream in (STDOUT, STDERR)}


def _make_pipe(kept: ExitStack, given: ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    kept.callback(os.close, read)
    given.callback(os.close, write)
    # The sandbox's user is not the one who made the pipe, and yet `> /dev/stderr` opens it: proc(5).
    os.fchmod(write, 0o666)
    return read, write


def descriptors_for(
    invocation: Invocation, pipes: Pipes, stdin: int | None, extra: Mapping[int, int], given: ExitStack
) -> dict[int, int]:
    """The descriptors of a process by the numbers it has them under; what is made for it is closed with `given`."""
    descriptors = {} if stdin is None else {0: stdin}
    descriptors |= {stream + 1: write for stream, (_, write) in pipes.items()}
    descriptors |= extra
    for number, content in invocation.files.items():
        descriptors[number] = given.enter_context(sealed_file(content)).fileno()
    if invocation.snapshot is not None:
        descriptors[STATE_DESCRIPTOR] = invocation.snapshot
    return descriptors


def spawn_request(invocation: Invocation, targets: Sequence[int], tty: bytes = b"") -> bytes:
    """The spawn packet: see `agent.protocol`."""
    return encode(
        b"spawn",
        invocation.cwd,
        b",".join(_target(invocation, number) for number in targets),
        tty,
        invocation.user,
        b"%d" % len(invocation.argv),
        *invocation.argv,
        *_environment_entries(invocation.env),
    )


def _target(invocation: Invocation, number: int) -> bytes:
    is_snapshot = number == STATE_DESCRIPTOR and invocation.snapshot is not None
    return b"%d" % number + (invocation.snapshot_kind if is_snapshot else b"")


def _environment_entries(env: Mapping[bytes, bytes]) -> list[bytes]:
    """NAME=value, as execve(2) takes them."""
    return [name + b"=" + value for name, value in env.items()]
