"""The journal's decisions: who asked, what is kept of a text, lines and segments, cursors and gaps.

Theory of operation. Events have consecutive numbers, from 1 on, that are given when they happen; the number is the
cursor. What is lost on its way to the disk leaves a hole in the numbers, and so does a segment that was dropped for its
age. A reader makes one gap of every hole, so that no loss goes unsaid and nothing has to be written to say it. Only a
writer that was killed leaves no hole: whoever opens the journal after it goes on STRIDE numbers later, with a gap that
says that nobody knows how many are missing.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from cove.errors import ValidationFailed
from cove.model.journal import JournalEvent, JournalFields, JournalKind

MOST_TEXT = 4096
SERVER_KEY = "server key"
# More events than a machine that crashed can have kept from its disk: no cursor is ever given out twice.
STRIDE = 1 << 32

_PRODUCT = re.compile(r"[A-Za-z0-9._-]{1,64}/[A-Za-z0-9._+-]{1,32}")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE = "0" * 32
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_SEGMENT = re.compile(r"[0-9]{20}\.jsonl")
_decoder = msgspec.json.Decoder(JournalEvent)
_encoder = msgspec.json.Encoder()

# An event as it is written: the fields of JournalEvent that it has.
Document = Mapping[str, object]


class Actor(msgspec.Struct, frozen=True):
    """The one who asked for something: the name of a key, the client program, the trace."""

    key: str | None = None
    client: str | None = None
    trace: str | None = None


NOBODY = Actor()


def make_document(number: int, at: datetime, kind: JournalKind, actor: Actor, fields: JournalFields) -> Document:
    """Return an event as it is written."""
    document = {"cursor": str(number), "at": at, "kind": kind, **fields}
    return document if actor is NOBODY else {**document, **msgspec.structs.asdict(actor)}


def parse_client(user_agent: str) -> str | None:
    """Return the first `name/version` of a User-Agent; nothing else of that header is kept."""
    found = _PRODUCT.match(user_agent)
    return None if found is None else found.group()


def parse_trace(traceparent: str) -> str | None:
    """Return the trace id of a `traceparent` header (W3C Trace Context), or None for what is none."""
    found = _TRACE.fullmatch(traceparent.strip())
    return None if found is None or found[1] == _NO_TRACE else found[1]


def command_text(command: str | Sequence[str]) -> str:
    """Return the beginning of a command as one would type it; one more character than is kept where it is longer."""
    if isinstance(command, str):
        return command[: MOST_TEXT + 1]
    typed, length = list[str](), 0
    for word in command:
        typed.append(shlex.quote(word[: MOST_TEXT + 1]))
        length += len(typed[-1]) + 1
        if length > MOST_TEXT:
            break
    return " ".join(typed)[: MOST_TEXT + 1]


def as_text(value: object) -> object:
    """Return a text that JSON can carry, and other values as they are."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def segment_name(number: int) -> str:
    """Return the name of the segment whose first event has that number."""
    return f"{number:020d}.jsonl"


def first_of(name: str) -> int:
    """Return the number of the first event in a segment."""
    return int(name.partition(".")[0])


def segments_in(names: Iterable[str]) -> list[str]:
    """Return those names that are of segments, oldest first."""
    return sorted(name for name in names if _SEGMENT.fullmatch(name))


def choose_segment(segments: Sequence[str], position: int) -> str | None:
    """Return the segment that has the event after that position, or the oldest one that is still there."""
    chosen = None
    for name in segments:
        if chosen is not None and first_of(name) > position + 1:
            break
        chosen = name
    return chosen


def parse_cursor(text: str | None) -> int:
    """Return the position that a reader continues from. Raises ValidationFailed."""
    if text is None:
        return 0
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValidationFailed(f"since must be a cursor of the journal, not {str(text)[:80]!r}")
    return int(text)


def encode_lines(events: Sequence[Document]) -> bytes:
    """Encode events as lines of a segment; what is no Unicode in them is replaced."""
    try:
        return _encoder.encode_lines(events)
    except UnicodeEncodeError:
        return _encoder.encode_lines([{name: as_text(value) for name, value in each.items()} for each in events])


def decode_lines(data: bytes) -> Iterator[JournalEvent]:
    """Decode whole lines; one that a crash of the machine spoilt is left out, and so a hole."""
    for line in data.splitlines():
        try:
            event = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if _NUMBER.fullmatch(event.cursor):
            yield event


def with_gaps(events: Iterable[JournalEvent], position: int) -> Iterator[JournalEvent]:
    """Give the events after that position, with a gap for every hole between them."""
    for event in events:
        number = int(event.cursor)
        if number <= position:
            continue
        missing = number - position - 1
        if missing and event.kind is not JournalKind.GAP:
            lost = missing if missing < STRIDE else None
            yield JournalEvent(cursor=str(number - 1), at=event.at, kind=JournalKind.GAP, lost=lost)
        yield event
        position = number


@dataclass(slots=True)
class Allowance:
    """A token bucket for events that code inside causes: so many at once, then so many a second."""

    burst: float
    per_second: float
    _left: float = -1.0
    _at: float = 0.0
    refused: int = 0

    def take(self, now: float) -> bool:
        """Return whether one more may be written; those that may not are counted in `refused`."""
        if self._left < 0:
            self._left, self._at = self.burst, now
        self._left = min(self.burst, self._left + max(0.0, now - self._at) * self.per_second)
        self._at = now
        if self._left < 1:
            self.refused += 1
            return False
        self._left -= 1
        return True

    def take_refused(self) -> int:
        """Return how many were refused since the last call."""
        refused, self.refused = self.refused, 0
        return refused
