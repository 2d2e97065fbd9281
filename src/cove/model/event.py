"""Events of an output stream, in order: output, gap, ready, exit."""

from typing import Literal

import msgspec

from cove.model.result import Outcome

StreamName = Literal["stdout", "stderr"]


class Output(msgspec.Struct, frozen=True, tag="output"):
    """Bytes of one stream; a reader that returns with `cursor` continues right after them."""

    stream: StreamName
    data: bytes
    cursor: str


class Gap(msgspec.Struct, frozen=True, tag="gap"):
    """So many bytes are no longer retained; reading continues at `cursor`."""

    bytes: int
    cursor: str


class Exit(msgspec.Struct, frozen=True, tag="exit"):
    """The end: nothing follows."""

    outcome: Outcome
    exit_code: int | None
    signal: int | None
    cursor: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The border between history and live output: what was kept from before has been shown."""

    cursor: str


LogEvent = Output | Gap | Exit
TerminalEvent = Output | Gap | Ready | Exit


class LogMatch(msgspec.Struct, frozen=True):
    """The line that `wait_for_log` was waiting for."""

    line: str
    groups: tuple[str | None, ...] = ()
