"""Count and report what happened to the runtime, without ever waiting for it."""

import asyncio
import socket
from collections import deque
from datetime import UTC, datetime

import msgspec

from cove.core.egress_protocol import FromEgress, Report, Totals, encode
from cove.core.network_policy import Allowed, Refused, Verdict
from cove.model.network import NetworkEvent, NetworkEventKind

_MOST_WAITING = 10_000
_BATCH = 64


class EventReport:
    """Sends events in packets of at most `_BATCH`; beyond `_MOST_WAITING` the oldest are counted instead."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._events: deque[NetworkEvent] = deque()
        self._answers: deque[FromEgress] = deque()
        self._lost = 0
        self.totals = Totals()

    def add_to_totals(self, **counts: int) -> None:
        """Count bytes, connections, requests or refusals."""
        sums = {name: getattr(self.totals, name) + count for name, count in counts.items()}
        self.totals = msgspec.structs.replace(self.totals, **sums)

    def refuse(self, kind: NetworkEventKind, host: str, port: int | None, refused: Refused, **facts: object) -> None:
        """Report that something was refused."""
        self.add_to_totals(refused=1)
        self.add(kind, host, port, refused, **facts)

    def add(self, kind: NetworkEventKind, host: str, port: int | None, verdict: Verdict, **facts: object) -> None:
        """Report one event; see NetworkEvent for its facts."""
        event = NetworkEvent(
            cursor="",
            kind=kind,
            at=datetime.now(UTC),
            host=host,
            port=port,
            allowed=isinstance(verdict, Allowed),
            reason=verdict.reason if isinstance(verdict, Refused) else "",
            rule=verdict.rule if isinstance(verdict, Refused) else verdict.text,
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
