"""Make of a journal what a person reads: a line for each event, a transcript, an asciicast of a terminal."""

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping

from cove.model.journal import JournalEvent, JournalKind

_CALLS = (JournalKind.EXEC, JournalKind.COMMAND, JournalKind.CODE)
_NAMES = {JournalKind.EXEC: "exec", JournalKind.COMMAND: "session", JournalKind.CODE: "code"}


def describe(event: JournalEvent) -> str:
    """Describe an event in one line."""
    if event.kind is JournalKind.GAP:
        return f"({'some' if event.lost is None else event.lost} events are missing)"
    what = (event.kind.value, event.operation, event.subject, event.host, event.path, event.target)
    words = [word for word in what if word]
    if event.port is not None:
        words.append(f"port {event.port}")
    if event.allowed is not None:
        words.append("allowed" if event.allowed else "refused")
    if event.reason:
        words.append(f"({event.reason})")
    if event.text is not None:
        words.append(repr(event.text) + ("..." if event.is_cut else ""))
    ended = _end(event)
    return " ".join(words) + (f": {ended}" if ended else "") + _asker(event)


def _end(event: JournalEvent) -> str:
    """Say how something ended, as far as that is known."""
    found = []
    if event.error is not None:
        found.append(f"failed with {event.error}")
    if event.outcome is not None:
        found.append(event.outcome.value if event.exit_code is None else f"{event.outcome.value} {event.exit_code}")
    if found and event.duration is not None:
        found.append(f"{event.duration:.3f} s")
    if found and event.output_bytes:
        found.append(f"{event.output_bytes} bytes")
    return ", ".join(found)


def _asker(event: JournalEvent) -> str:
    known = [each for each in (event.key, event.client, event.trace) if each is not None]
    return f" [{', '.join(known)}]" if known else ""


class Transcript:
    """Commands and what they printed, in order. `logs` has the output of processes that the journal has not."""

    def __init__(self, logs: Mapping[str, str]) -> None:
        self._logs = logs
        self._printed: dict[tuple[str | None, str | None], list[str]] = {}
        self._has_printed: set[str | None] = set()

    def write(self, events: Iterable[JournalEvent]) -> Iterator[str]:
        """Write the lines."""
        for event in events:
            yield from self._write(event)

    def _write(self, event: JournalEvent) -> Iterator[str]:
        at = f"{event.at:%Y-%m-%d %H:%M:%S}"
        if event.kind is JournalKind.OUTPUT:
            yield from self._take(event)
        elif event.kind in _CALLS:
            where = _NAMES[event.kind] if event.subject is None else f"{_NAMES[event.kind]} {event.subject}"
            yield f"{at} {where}"
            yield from _prefixed("$ ", _text(event))
            printed = "".join(self._printed.pop((event.kind.value, event.subject), []))
            yield from printed.splitlines()
            if event.output_bytes and not printed:
                yield f"({event.output_bytes} bytes of output were not kept)"
            yield f"[{_end(event)}]"
        elif event.kind is JournalKind.PROCESS_STARTED:
            yield f"{at} process {event.subject}"
            yield from _prefixed("$ ", _text(event))
        elif event.kind is JournalKind.PROCESS_ENDED:
            yield from self._write_end(at, event)
        else:
            yield f"{at} {describe(event)}"

    def _take(self, event: JournalEvent) -> Iterator[str]:
        """Output of a call is written with it, that of a process when it comes, that of a terminal not at all."""
        text = (event.data or b"").decode("utf-8", "replace")
        if event.operation == JournalKind.PROCESS_STARTED:
            self._has_printed.add(event.subject)
            yield from _prefixed(f"{event.subject}| ", text)
        elif event.operation != JournalKind.TERMINAL_STARTED:
            self._printed.setdefault((event.operation, event.subject), []).append(text)

    def _write_end(self, at: str, event: JournalEvent) -> Iterator[str]:
        if event.subject not in self._has_printed:
            log = self._logs.get(event.subject or "", "")
            yield from _prefixed(f"{event.subject}| ", log)
            if event.output_bytes and not log:
                yield f"({event.output_bytes} bytes of output were not kept)"
        yield f"{at} process {event.subject} [{_end(event)}]"


def _text(event: JournalEvent) -> str:
    return "(its text was not kept)" if event.text is None else event.text + ("..." if event.is_cut else "")


def _prefixed(prefix: str, text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield prefix + line


def asciicast(events: Iterable[JournalEvent], terminal: str) -> Iterator[str]:
    """Write one terminal of a journal as lines of an asciicast; nothing where it is not in the journal.

    A terminal that was made again under the same id is another one: the last of them is written.
    """
    found: list[JournalEvent] = []
    for event in events:
        if event.subject == terminal and event.kind is JournalKind.TERMINAL_STARTED:
            found = [event]
        elif found and event.subject == terminal and _is_shown(event):
            found.append(event)
    if found:
        yield from _cast(found[0], found[1:])


def _is_shown(event: JournalEvent) -> bool:
    if event.kind is JournalKind.OUTPUT:
        return event.operation == JournalKind.TERMINAL_STARTED
    return event.kind is JournalKind.TERMINAL_RESIZED


def _cast(start: JournalEvent, events: Iterable[JournalEvent]) -> Iterator[str]:
    began = start.at.timestamp()
    header = {"version": 2, "width": start.cols or 80, "height": start.rows or 24, "timestamp": int(began)}
    yield json.dumps(header)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for event in events:
        seconds = round(max(0.0, event.at.timestamp() - began), 6)
        if event.kind is JournalKind.TERMINAL_RESIZED:
            yield json.dumps([seconds, "r", f"{event.cols}x{event.rows}"])
        elif text := decoder.decode(event.data or b""):
            yield json.dumps([seconds, "o", text])
