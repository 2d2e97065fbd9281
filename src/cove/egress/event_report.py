"""Count and report what happened to the runtime, without ever waiting for it."""

import asyncio
import mmap
import socket
from collections import deque
from datetime import UTC, datetime

from cove.core.egress_protocol import TOTALS_BYTES, FromEgress, Report, Totals, encode
from cove.core.network_policy import Allowed, Refused, Verdict
from cove.model.network import NetworkEvent, NetworkEventKind

SENT_BYTES, RECEIVED_BYTES, CONNECTIONS, REQUESTS, REFUSED = range(len(Totals.__struct_fields__))
_MOST_WAITING = 10_000
# A packet of the protocol holds so many with texts of this length, also when every character is escaped.
_BATCH = 8
_MOST_TEXT = 256


class EventReport:
    """Sends events in packets of at most `_BATCH`; beyond `_MOST_WAITING` the oldest are counted instead."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._events: deque[NetworkEvent] = deque()
        self._answers: deque[FromEgress] = deque()
        self._lost = 0
        self.counters = memoryview(bytearray(TOTALS_BYTES)).cast("Q")

    def count_in(self, file: int) -> None:
        """Count on from what this file holds, and in it: `counters` are those of Totals, in its order."""
        self.counters = memoryview(mmap.mmap(file, TOTALS_BYTES)).cast("Q")

    def refuse(self, kind: NetworkEventKind, host: str, port: int | None, refused: Refused, **facts: object) -> None:
        """Report that something was refused."""
        self.counters[REFUSED] += 1
        self.add(kind, host, port, refused, **facts)

    def add(self, kind: NetworkEventKind, host: str, port: int | None, verdict: Verdict, **facts: object) -> None:
        """Report one event; see NetworkEvent for its facts."""
        rule = verdict.rule if isinstance(verdict, Refused) else verdict.text
        event = NetworkEvent(
            cursor="",
            kind=kind,
            at=datetime.now(UTC),
            host=host[:_MOST_TEXT],
            port=port,
            allowed=isinstance(verdict, Allowed),
            reason=verdict.reason[:_MOST_TEXT] if isinstance(verdict, Refused) else "",
            rule=None if rule is None else rule[:_MOST_TEXT],
            **facts,  # type: ignore[arg-type]  # named and typed by NetworkEvent, which checks what it decodes
        )
        if len(self._events) >= _MOST_WAITING:
            self._events.popleft()
            self._lost += 1
        self._events.append(event)
        self.flush()

    def answer(self, message: FromEgress) -> None:
        """Answer after all that has happened so far."""
        self._answers.append(message)
        self.flush()

    def flush(self) -> None:
        """Send what can be sent at once; the rest when the runtime has read."""
        try:
            while self._events:
                batch = tuple(self._events[index] for index in range(min(_BATCH, len(self._events))))
                self._sock.send(encode(Report(events=batch, lost=self._lost)))
                self._lost = 0
                for _ in batch:
                    self._events.popleft()
            while self._answers:
                self._sock.send(encode(self._answers[0]))
                self._answers.popleft()
        except BlockingIOError:
            self._wait_until_writable()
        except OSError:  # the runtime is gone, and this process goes with it
            self._events.clear()
            self._answers.clear()

    def _wait_until_writable(self) -> None:
        loop = asyncio.get_running_loop()

        def on_writable() -> None:
            loop.remove_writer(self._sock)
            self.flush()

        loop.add_writer(self._sock, on_writable)
