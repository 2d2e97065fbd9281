"""Keep the latest events of a sandbox's network, each with a cursor that a reader continues from.

A reader that follows the cursors sees every event once, or a gap that says how many it missed.
"""

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from cove.errors import ValidationFailed
from cove.model.network import NetworkDenial, NetworkEvent, NetworkEventKind

MOST_EVENTS = 10_000
_MOST_DENIALS = 100


class NetworkLog:
    """Events `first` to `end`, counted from the sandbox's start; those before `first` are gone."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._events: deque[NetworkEvent] = deque(maxlen=most)
        self.end = 0

    @property
    def first(self) -> int:
        """The number of the oldest event that is kept."""
        return self.end - len(self._events)

    def append(self, events: Sequence[NetworkEvent], lost: int = 0) -> None:
        """Take over events, the oldest first; `lost` were lost before them."""
        if lost:
            self._append(NetworkEvent(cursor="", kind=NetworkEventKind.GAP, at=datetime.now(UTC), lost=lost))
        for event in events:
            self._append(event)

    def _append(self, event: NetworkEvent) -> None:
        self.end += 1
        self._events.append(msgspec.structs.replace(event, cursor=str(self.end)))

    def read(self, position: int, most: int) -> list[NetworkEvent]:
        """The events from that position on, behind a gap if it is older than what is kept."""
        gap = []
        if position < self.first:
            lost = self.first - position
            gap = [
                NetworkEvent(cursor=str(self.first), kind=NetworkEventKind.GAP, at=self._events[0].at, lost=lost),
            ]
            position = self.first
        start = position - self.first
        return [*gap, *(self._events[index] for index in range(start, min(start + most, len(self._events))))]

    def denials_since(self, position: int) -> tuple[NetworkDenial, ...]:
        """Return the refusals from there on, each once, in order."""
        start = max(position - self.first, 0)
        denials = dict.fromkeys(
            NetworkDenial(host=event.host, port=event.port, reason=event.reason, rule=event.rule)
            for event in (self._events[index] for index in range(start, len(self._events)))
            if not event.allowed and event.kind is not NetworkEventKind.GAP
        )
        return tuple(denials)[:_MOST_DENIALS]


def parse_cursor(text: str | None) -> int:
    """The position that a reader continues from. Raises ValidationFailed."""
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValidationFailed(f"since must be a cursor of the network log, not {text!r}")
    return int(text)
