"""The record of E2B's protocol about a sandbox, a file at its place: what Cove's own record does not say."""

from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from cove.local.state import replace_file

_FILE: Final = "e2b.json"


class E2bRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of who made the sandbox.

    At the end of `timeout` it is destroyed or, with `auto_pause`, paused at `pauses_at`: with its memory, or with its
    files alone. With `auto_resume` any request wakes it. What listens inside is `is_public`, or needs a token.
    `metadata` is what of the metadata cannot be a label.
    """

    template: str
    timeout: float
    auto_pause: bool = False
    keeps_memory: bool = True
    auto_resume: bool = False
    is_public: bool = True
    metadata: dict[str, str] = {}
    pauses_at: datetime | None = None


_decoder = msgspec.json.Decoder(E2bRecord)


def write_record(place: Path, record: E2bRecord) -> None:
    """Replace the record, all at once. Blocks."""
    replace_file(place / _FILE, msgspec.json.encode(record))


def read_record(place: Path) -> E2bRecord | None:
    """Return the record; None for a sandbox that was made otherwise. Blocks."""
    try:
        return _decoder.decode((place / _FILE).read_bytes())
    except FileNotFoundError:
        return None
