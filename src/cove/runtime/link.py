"""The runtime's end of the agent's control socket: requests out, answers in."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cove.agent import protocol
from cove.agent.protocol import ProtocolError
from cove.errors import CoveError, SandboxDestroyed, ValidationFailed, from_errno
from cove.linux.descriptors import Kind, is_kind
from cove.linux.packets import Packet, close_all, receive_packet, send_packet

# Why nothing inside can be reached any more; the argument says whether what was asked for may have been done.
Explain = Callable[[bool], CoveError]


def _explain(_: bool) -> CoveError:
    return SandboxDestroyed("the sandbox is gone")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent answered; whoever takes it owns the descriptors."""

    fields: list[bytes]
    descriptors: list[int]


@dataclass(slots=True)
class _Pending:
    """A request under way and the exact shape its answer must have."""

    answer: "asyncio.Future[Answer]"
    fields: int
    descriptors: int
    subject: str
    is_content: bool = False

    def shape(self, fields: list[bytes], descriptors: list[int]) -> Answer:
        """The answer, or ProtocolError when it is another than expected. Content that is large is a descriptor."""
        if self.is_content:
            content = b"\0".join(fields)
            if fields and len(descriptors) <= (0 if content else 1):
                return Answer([content], descriptors)
        elif (len(fields), len(descriptors)) == (self.fields, self.descriptors):
            return Answer(fields, descriptors)
        raise ProtocolError("malformed answer")


class Link:
    """Owns the control socket. `on_lost` is called once, when the agent is gone or broke the protocol."""

    def __init__(self, sock: socket.socket, on_lost: Callable[[str], None]) -> None:
        self._sock = sock
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._tag = 0
        self._pending: dict[int, _Pending] = {}
        self._writable: asyncio.Future[None] | None = None
        self.explain: Explain = _explain
        self.hello: asyncio.Future[None] = self._loop.create_future()
        self.closed = False
        self._loop.add_reader(sock, self._on_readable)

    async def request(
        self,
        verb: bytes,
        *fields: bytes,
        send: Sequence[int] = (),
        expect_fields: int = 0,
        expect_descriptors: int = 0,
        subject: str = "",
    ) -> Answer:
        """One request and its answer, which must have exactly the expected shape."""
        return await self._request(
            verb, fields, send, _Pending(self._loop.create_future(), expect_fields, expect_descriptors, subject)
        )

    async def request_content(self, verb: bytes, *fields: bytes, subject: str) -> bytes | int:
        """A request whose answer is content, or a descriptor that is for the caller to judge, and belongs to it."""
        answer = await self._request(
            verb, fields, (), _Pending(self._loop.create_future(), 1, 0, subject, is_content=True)
        )
        return answer.descriptors[0] if answer.descriptors else answer.fields[0]

    async def _request(self, verb: bytes, fields: Sequence[bytes], send: Sequence[int], pending: _Pending) -> Answer:
        if self.closed:
            raise self.explain(False)
        self._tag += 1
        tag = self._tag
        await self._send(protocol.encode(verb, b"%d" % tag, *fields), send)
        self._pending[tag] = pending
        answer = pending.answer
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                close_all(answer.result().descriptors)
            raise

    async def _send(self, packet: bytes, descriptors: Sequence[int]) -> None:
        """Send at once if the socket takes it, otherwise when the agent has worked off what is there."""
        while not self.closed:
            try:
                return send_packet(self._sock, packet, descriptors)
            except BlockingIOError:
                if self._writable is None:
                    self._writable = self._loop.create_future()
                    self._loop.add_writer(self._sock, self._on_writable)
                await asyncio.shield(self._writable)
            except ConnectionError:
                self._lose("the agent ended")
        raise self.explain(False)

    def _on_writable(self) -> None:
        if self._writable is not None:
            self._loop.remove_writer(self._sock)
            self._writable.set_result(None)
            self._writable = None

    async def request_descriptor(self, kind: Kind, verb: bytes, *fields: bytes, subject: str) -> int:
        """A request whose answer is one descriptor; whoever calls owns it. Anything but `kind` is refused."""
        answer = await self.request(verb, *fields, expect_descriptors=1, subject=subject)
        (descriptor,) = answer.descriptors
        if not is_kind(descriptor, kind):
            close_all([descriptor])
            raise ValidationFailed(f"{subject} is not {kind.value}")
        return descriptor

    def close(self) -> None:
        """Close the socket, which ends the agent and with it everything inside. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._on_writable()
        self._sock.close()
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(self.explain(True))
        self._pending.clear()
        if not self.hello.done():
            self.hello.cancel()

    def abandon(self) -> None:
        """Close the socket when the event loop no longer runs."""
        self._sock.close()

    def _on_readable(self) -> None:
        try:
            while not self.closed and (packet := receive_packet(self._sock)) is not None:
                self._take(packet)
            if not self.closed:
                self._lose("the agent ended")
        except BlockingIOError:
            return
        except ConnectionError:
            self._lose("the agent ended")
        except (ProtocolError, OSError) as error:
            self._lose(f"the agent broke the protocol: {error}")

    def _lose(self, reason: str) -> None:
        """Who waits for an answer is told what has become of the sandbox by then."""
        self._on_lost(reason)
        self.close()

    def _take(self, packet: Packet) -> None:
        try:
            self._dispatch(protocol.decode(packet.data), packet.descriptors)
        except ProtocolError:
            close_all(packet.descriptors)
            raise

    def _dispatch(self, fields: list[bytes], descriptors: list[int]) -> None:
        if fields == [b"hello"] and not self.hello.done() and not descriptors:
            self.hello.set_result(None)
            return
        if len(fields) < 2 or (tag := protocol.number(fields[1])) not in self._pending:
            raise ProtocolError("an answer that nobody asked for")
        pending = self._pending[tag]
        if fields[0] == b"error" and len(fields) == 3 and not descriptors:
            number = protocol.number(fields[2], protocol.MOST_ERRNO)
            if not pending.answer.done():
                pending.answer.set_exception(from_errno(number, pending.subject))
        elif fields[0] == b"ok":
            answer = pending.shape(fields[2:], descriptors)
            if pending.answer.done():
                close_all(descriptors)
            else:
                pending.answer.set_result(answer)
        else:
            raise ProtocolError("malformed answer")
        del self._pending[tag]
