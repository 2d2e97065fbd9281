"""multipart/form-data: the same in any pieces, and parts that were written are the parts that are read."""

from collections.abc import Iterator

from cove.core.multipart import Event, MultipartParser, Part, PartEnd, boundary_of
from cove.errors import ValidationFailed
from fuzz.splitting import cut


def _parse(pieces: Iterator[bytes] | list[bytes], boundary: bytes) -> list[object]:
    parser = MultipartParser(boundary)
    parts: list[object] = []
    try:
        for piece in pieces:
            for event in parser.feed(piece):
                _add(parts, event)
        parser.finish()
    except ValidationFailed:
        return ["refused"]
    return parts


def _add(parts: list[object], event: Event) -> None:
    """Put the bytes of a part together, however they came."""
    if isinstance(event, bytes):
        assert event
        last = parts[-1]
        assert isinstance(last, bytearray), "content that belongs to no part"
        last += event
    elif isinstance(event, Part):
        parts += [event, bytearray()]
    else:
        parts.append(PartEnd())


def check(data: bytes) -> None:
    """The first line is the type of the content, the rest the body."""
    kind, _, body = data.partition(b"\n")
    try:
        boundary = boundary_of(kind.decode("latin-1"))
    except ValidationFailed:
        boundary = b"x"
    assert 0 < len(boundary) <= 70
    assert _parse([body], boundary) == _parse(cut(body), boundary)
    delimiter = b"\r\n--" + boundary
    if delimiter not in b"\r\n" + body:
        written = b'--%b\r\nContent-Disposition: form-data; name="n"; filename="f"\r\n\r\n%b\r\n--%b--' % (
            boundary,
            body,
            boundary,
        )
        if delimiter not in b"\r\n\r\n" + body + b"\r\n":
            assert _parse([written], boundary) == [Part("n", "f"), bytearray(body), PartEnd()]


def seeds() -> Iterator[bytes]:
    """Bodies with several parts, without any, and cut short."""
    head = b"multipart/form-data; boundary=x\n"
    yield (
        head
        + b'--x\r\nContent-Disposition: form-data; name="a"; filename="/p \\"q"\r\n\r\ncontent\r\n--x\r\n\r\n\r\n--x--'
    )
    yield head + b"--x--"
    yield b'multipart/form-data; boundary="a b"\n--a b\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--a b--'
    yield head + b"preamble\r\n--x\r\nX: y\r\n\r\nabc\r\n--y\r\n--x"
