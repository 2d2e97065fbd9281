"""The runtime's end of the agent's control socket: requests out, answers in."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cove.agent import protocol
from cove.agent.protocol import ProtocolError
from cove.errors import (
    ConnectionLost,
    CoveError,
    SandboxDestroyed,
    SandboxUnavailable,
    ValidationFailed,
    from_errno,
)
from cove.linux.descriptors import Kind, is_kind
from cove.linux.packets import Packet, receive_packet, release_socket, send_packet
from cove.local.threads import close_in_thread
from cove.runtime.clock import Clock, ClockTimer
from cove.runtime.gate import Gate, OpenGate
from cove.runtime.journal import Journal

# The agent answers within microseconds; these are for a machine, or a sandbox, that has no CPU time left.
ANSWER_SECONDS = 30.0
# How long a cancelled caller waits for the agent to have done what it was asked, so that nothing happens later.
_CANCEL_SECONDS = 2.0
# Packets that one callback takes before the loop looks at its other descriptors.
MOST_PACKETS = 16
# An agent that leaves so many requests unanswered is not waited for again.
_MOST_UNANSWERED = 1000

# Why nothing inside can be reached any more; the argument says whether what was asked for may have been done.
Explain = Callable[[bool], CoveError]


def _as_user(user: bytes, verb: bytes) -> tuple[bytes, ...]:
    return (b"as", user, verb) if user else (verb,)


def _explain(_: bool) -> CoveError:
    return SandboxDestroyed("the sandbox is gone")


def _unanswered(may_have_run: bool) -> CoveError:
    silence = f"the sandbox did not answer within {ANSWER_SECONDS:g} s"
    if may_have_run:
        return ConnectionLost(f"{silence}: the call may have had its effect")
    return SandboxUnavailable(f"{silence}: nothing was started")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the agent; whoever takes it owns the descriptors."""

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
    due: float = 0.0

    def shape(self, rest: bytes | None, descriptors: list[int]) -> Answer:
        """The answer, or ProtocolError when it is another than expected. Content that is large is a descriptor."""
        if self.is_content:
            if rest is not None and len(descriptors) <= (0 if rest else 1):
                return Answer([rest], descriptors)
        else:
            fields = [] if rest is None else rest.split(b"\0", self.fields)
            if (len(fields), len(descriptors)) == (self.fields, self.descriptors):
                return Answer(fields, descriptors)
        raise ProtocolError("malformed answer")


class Link:
    """Owns the control socket. `on_lost` is called once, when the agent is gone or broke the protocol."""

    def __init__(self, sock: socket.socket, on_lost: Callable[[str], None], clock: Clock | None = None) -> None:
        self._sock = sock
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.clock = clock or Clock()
        self._tag = 0
        self._pending: dict[int, _Pending] = {}
        self._abandoned: dict[int, asyncio.Future[None]] = {}
        self._writable: asyncio.Future[None] | None = None
        self.explain: Explain = _explain
        self.gate: Gate = OpenGate()
        self.journal = Journal.silent()
        self.hello: asyncio.Future[None] = self._loop.create_future()
        self.closed = False
        self._overdue: ClockTimer | None = None
        self._loop.add_reader(sock, self._on_readable)

    async def request(
        self,
        verb: bytes,
        *fields: bytes,
        send: Sequence[int] = (),
        expect_fields: int = 0,
        expect_descriptors: int = 0,
        subject: str = "",
        user: bytes = b"",
    ) -> Answer:
        """Send one request and return its answer, which must have exactly the expected shape.

        The agent does it as that user of core/users, where there are several.

        Raises ConnectionLost when the agent does not answer within ANSWER_SECONDS.
        """
        return await self._request(
            _as_user(user, verb),
            fields,
            send,
            _Pending(self._loop.create_future(), expect_fields, expect_descriptors, subject),
        )

    async def request_content(self, verb: bytes, *fields: bytes, subject: str, user: bytes = b"") -> bytes | int:
        """Request content, or a descriptor that is for the caller to judge, and belongs to it."""
        answer = await self._request(
            _as_user(user, verb), fields, (), _Pending(self._loop.create_future(), 1, 0, subject, is_content=True)
        )
        return answer.descriptors[0] if answer.descriptors else answer.fields[0]

    async def _request(
        self, verbs: tuple[bytes, ...], fields: Sequence[bytes], send: Sequence[int], pending: _Pending
    ) -> Answer:
        if self.closed:
            raise self.explain(False)
        self._tag += 1
        tag = self._tag
        await self._send(protocol.encode(verbs[0], b"%d" % tag, *verbs[1:], *fields), send)
        pending.due = self.clock.time() + ANSWER_SECONDS
        self._pending[tag] = pending
        if self._overdue is None:
            self._overdue = self.clock.call_at(pending.due, self._on_overdue)
        answer = pending.answer
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                close_in_thread(answer.result().descriptors)
            if tag in self._pending:
                abandoned = self._abandoned[tag] = self._loop.create_future()
                await asyncio.wait([abandoned], timeout=_CANCEL_SECONDS)
            raise

    async def finish_abandoned(self) -> None:
        """Wait until the agent has done what cancelled callers had asked of it: what it does later comes after that.

        Raises SandboxUnavailable when it does not answer within ANSWER_SECONDS.
        """
        if self._abandoned:
            _, late = await asyncio.wait(list(self._abandoned.values()), timeout=ANSWER_SECONDS)
            if late:
                raise _unanswered(False)

    async def _send(self, packet: bytes, descriptors: Sequence[int]) -> None:
        """Send at once if the socket takes it, otherwise when the agent has worked off what is there."""
        due = self.clock.time() + ANSWER_SECONDS
        while not self.closed:
            try:
                return send_packet(self._sock, packet, descriptors)
            except BlockingIOError:
                if self._writable is None:
                    self._writable = self._loop.create_future()
                    self._loop.add_writer(self._sock, self._on_writable)
                await self.clock.wait([self._writable], due - self.clock.time())
                if self.clock.time() >= due:
                    raise _unanswered(False) from None
            except ConnectionError:
                self._lose("the agent ended")
        raise self.explain(False)

    def _on_overdue(self) -> None:
        """Fail the requests that are overdue. Their tags stay known, so that a late answer is no violation.

        One timer serves all of them: they are due in the order in which they were sent.
        """
        self._overdue = None
        now, unanswered = self.clock.time(), 0
        for pending in self._pending.values():
            if pending.due > now:
                self._overdue = self.clock.call_at(pending.due, self._on_overdue)
                break
            unanswered += 1
            if not pending.answer.done():
                pending.answer.set_exception(_unanswered(True))
        if unanswered > _MOST_UNANSWERED:
            self._lose("the agent does not answer")

    def _on_writable(self) -> None:
        if self._writable is not None:
            self._loop.remove_writer(self._sock)
            self._writable.set_result(None)
            self._writable = None

    async def request_descriptor(self, kind: Kind, verb: bytes, *fields: bytes, subject: str) -> int:
        """Request one descriptor; whoever calls owns it. Anything but `kind` is refused."""
        answer = await self.request(verb, *fields, expect_descriptors=1, subject=subject)
        (descriptor,) = answer.descriptors
        if not is_kind(descriptor, kind):
            close_in_thread([descriptor])
            raise ValidationFailed(f"{subject} is not {kind.value}")
        return descriptor

    def close(self) -> None:
        """Close the socket, which ends the agent and with it everything inside. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        if self._overdue is not None:
            self._overdue.cancel()
        self._on_writable()
        if (unread := release_socket(self._sock)) is not None:
            close_in_thread([unread])
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(self.explain(True))
        self._pending.clear()
        for abandoned in self._abandoned.values():
            abandoned.set_result(None)
        self._abandoned.clear()
        if not self.hello.done():
            self.hello.cancel()

    def abandon(self) -> None:
        """Close the socket when the event loop no longer runs."""
        self._sock.close()

    def _on_readable(self) -> None:
        try:
            for _ in range(MOST_PACKETS):
                packet = None if self.closed else receive_packet(self._sock)
                if packet is None:
                    self._lose("the agent ended")
                    return
                self._take(packet)
        except BlockingIOError:
            return
        except ConnectionError:
            self._lose("the agent ended")
        except (ProtocolError, OSError) as error:
            self._lose(f"the agent broke the protocol: {error}")

    def _lose(self, reason: str) -> None:
        """Fail all requests: who waits is told what has become of the sandbox by then."""
        if not self.closed:
            self._on_lost(reason)
            self.close()

    def _take(self, packet: Packet) -> None:
        try:
            packet.check()
            self._dispatch(packet.data, packet.descriptors)
        except ProtocolError:
            if packet.descriptors:
                close_in_thread(packet.descriptors)
            raise

    def _dispatch(self, data: bytes, descriptors: list[int]) -> None:
        if data == b"hello" and not self.hello.done() and not descriptors:
            self.hello.set_result(None)
            return
        verb, *rest = protocol.decode(data, 3)
        if not rest or (tag := protocol.number(rest[0])) not in self._pending:
            raise ProtocolError("an answer that nobody asked for")
        pending = self._pending[tag]
        if verb == b"error" and len(rest) == 2 and not descriptors:
            number = protocol.number(rest[1], protocol.MOST_ERRNO)
            if not pending.answer.done():
                pending.answer.set_exception(from_errno(number, pending.subject))
        elif verb == b"ok":
            answer = pending.shape(rest[1] if len(rest) == 2 else None, descriptors)
            if pending.answer.done():
                close_in_thread(descriptors)
            else:
                pending.answer.set_result(answer)
        else:
            raise ProtocolError("malformed answer")
        del self._pending[tag]
        if (abandoned := self._abandoned.pop(tag, None)) is not None:
            abandoned.set_result(None)
