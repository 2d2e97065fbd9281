"""E2B's Connect protocol: envelopes the same in any pieces, messages within their bound, and what we write is read."""

from collections.abc import Iterator

import msgspec

from cove.server.e2b import filesystem, process, watch  # noqa: F401  # whose messages they are
from cove.server.e2b.rpc import Wire, decode
from cove.wire.connect import LAST_ENVELOPE, ConnectError, EnvelopeDecoder, encode_envelope
from fuzz.splitting import cut

_MOST = 300
_KINDS = sorted(Wire.__subclasses__(), key=lambda kind: kind.__qualname__)


def _read(pieces: Iterator[bytes] | list[bytes]) -> list[bytes] | None:
    decoder = EnvelopeDecoder(_MOST)
    messages: list[bytes] = []
    try:
        for piece in pieces:
            messages += decoder.feed(piece)
        decoder.finish()
    except ConnectError as error:
        assert msgspec.json.decode(error.encode())["code"] == error.code
        return None
    return messages


def check(data: bytes) -> None:
    """Read it as envelopes, and as the message of one."""
    whole = _read([data])
    assert whole == _read(cut(data))
    for message in whole or ():
        assert len(message) <= _MOST
    if len(data) <= _MOST:
        assert _read([encode_envelope(data) + LAST_ENVELOPE]) == [data]
    for kind in _KINDS:
        try:
            decode(data, kind)
        except ConnectError as error:
            error.encode_last()


def seeds() -> Iterator[bytes]:
    """Envelopes and messages of clients."""
    start = (
        b'{"process":{"cmd":"/bin/bash","args":["-l","-c","echo"],"envs":{"A":"b"},"cwd":"/"},"stdin":true,"tag":"t"}'
    )
    yield encode_envelope(start) + LAST_ENVELOPE
    yield start
    yield b'{"process":{"selector":{"pid":12}},"signal":"SIGNAL_SIGKILL"}'
    yield b'{"pid":3,"input":{"stdin":"aGVsbG8="},"pty":{"size":{"cols":80,"rows":24}}}'
    yield b'{"path":"/home/user","recursive":true,"depth":2,"source":"/a","destination":"/b"}'
    yield encode_envelope(b"x" * 301) + encode_envelope(b"", 1) + encode_envelope(b"", 4)
