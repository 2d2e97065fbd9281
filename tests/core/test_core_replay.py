"""What a person reads of a journal: lines, transcripts, asciicasts."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from cove.core.replay import Transcript, asciicast, describe
from cove.model import JournalEvent, JournalKind, Outcome

pytestmark = pytest.mark.pure

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def event(kind: JournalKind, seconds: float = 0.0, **fields: object) -> JournalEvent:
    at = BEGAN + timedelta(seconds=seconds)
    return JournalEvent(cursor="1", at=at, kind=kind, **fields)  # type: ignore[arg-type]  # as the test says


def ended(kind: JournalKind, **fields: object) -> JournalEvent:
    return event(kind, **{"outcome": Outcome.EXITED, "exit_code": 0, "duration": 0.5, **fields})  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (event(JournalKind.GAP, lost=3), "(3 events are missing)"),
        (event(JournalKind.GAP), "(some events are missing)"),
        (event(JournalKind.FILES, operation="write", path="/workspace/a"), "files write /workspace/a"),
        (event(JournalKind.PORT, operation="expose", port=80), "port expose port 80"),
        (event(JournalKind.NETWORK, host="a.example", allowed=True), "network a.example allowed"),
        (
            event(JournalKind.NETWORK, host="a.example", allowed=False, reason="no rule"),
            "network a.example refused (no rule)",
        ),
        (
            ended(JournalKind.EXEC, text="true", is_cut=True, output_bytes=7, key="server key", client="curl/8"),
            "exec 'true'...: exited 0, 0.500 s, 7 bytes [server key, curl/8]",
        ),
        (event(JournalKind.EXEC, error="SPAWN_FAILED"), "exec: failed with SPAWN_FAILED"),
        (event(JournalKind.CODE, outcome=Outcome.LOST), "code: lost"),
    ],
)
def test_an_event_is_one_line(given: JournalEvent, line: str) -> None:
    assert describe(given) == line


def test_a_transcript_has_commands_and_output_in_order() -> None:
    events = [
        event(JournalKind.CREATED, subject="box"),
        event(JournalKind.OUTPUT, operation="exec", stream="stdout", data=b"one\ntwo\n"),
        ended(JournalKind.EXEC, text="seq 2", output_bytes=8),
        ended(JournalKind.COMMAND, subject="s", text="ls", is_cut=True, output_bytes=5),
        ended(JournalKind.CODE, subject="c"),
        event(JournalKind.PROCESS_STARTED, subject="p", text="serve"),
        event(JournalKind.OUTPUT, operation="terminal_started", subject="t", data=b"shown"),
        event(JournalKind.OUTPUT, operation="process_started", subject="p", data=b"ready\n"),
        ended(JournalKind.PROCESS_ENDED, subject="p", output_bytes=6),
        ended(JournalKind.PROCESS_ENDED, subject="q", output_bytes=4),
        ended(JournalKind.PROCESS_ENDED, subject="r", output_bytes=4),
        event(JournalKind.OUTPUT, operation="exec", stream="stdout"),
    ]
    at = "2026-01-02 03:04:05"
    assert list(Transcript({"q": "log\n"}).write(events)) == [
        f"{at} created box",
        f"{at} exec",
        "$ seq 2",
        "one",
        "two",
        "[exited 0, 0.500 s, 8 bytes]",
        f"{at} session s",
        "$ ls...",
        "(5 bytes of output were not kept)",
        "[exited 0, 0.500 s, 5 bytes]",
        f"{at} code c",
        "$ (its text was not kept)",
        "[exited 0, 0.500 s]",
        f"{at} process p",
        "$ serve",
        "p| ready",
        f"{at} process p [exited 0, 0.500 s, 6 bytes]",
        "q| log",
        f"{at} process q [exited 0, 0.500 s, 4 bytes]",
        "(4 bytes of output were not kept)",
        f"{at} process r [exited 0, 0.500 s, 4 bytes]",
    ]


def test_a_terminal_is_an_asciicast() -> None:
    shown = {"operation": "terminal_started", "subject": "t", "stream": "stdout"}
    events = [
        event(JournalKind.TERMINAL_STARTED, subject="t", cols=1, rows=1),
        event(JournalKind.TERMINAL_STARTED, 1.0, subject="t", cols=100, rows=30),
        event(JournalKind.OUTPUT, 1.5, data="ü".encode()[:1], **shown),
        event(JournalKind.OUTPUT, 2.0, data="ü$ ".encode()[1:], **shown),
        event(JournalKind.OUTPUT, 2.0, operation="exec", subject="t", data=b"other"),
        event(JournalKind.TERMINAL_RESIZED, 3.0, subject="t", cols=80, rows=24),
        event(JournalKind.TERMINAL_ENDED, 3.0, subject="t"),
        event(JournalKind.OUTPUT, 4.0, operation="terminal_started", subject="other", data=b"x"),
    ]
    header, *frames = map(json.loads, asciicast(events, "t"))
    assert header == {"version": 2, "width": 100, "height": 30, "timestamp": int(BEGAN.timestamp()) + 1}
    assert frames == [[1.0, "o", "ü$ "], [2.0, "r", "80x24"]]
    assert list(asciicast(events, "missing")) == []


def test_a_terminal_of_unknown_size_has_the_usual_one() -> None:
    (header,) = map(json.loads, asciicast([event(JournalKind.TERMINAL_STARTED, subject="t")], "t"))
    assert (header["width"], header["height"]) == (80, 24)
