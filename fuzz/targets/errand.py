"""Messages of errands and packets of the agent and its launchers: fields within bounds, or a broken protocol."""

from collections.abc import Iterator

from cove.agent import protocol
from cove.agent.protocol import ProtocolError
from cove.core.errand_protocol import MOST_MESSAGE_BYTES, MessageReader, check_relative
from fuzz.splitting import cut


def _read(pieces: Iterator[bytes] | list[bytes]) -> list[list[bytes]] | None:
    reader = MessageReader()
    messages: list[list[bytes]] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (message := reader.take()) is not None:
                messages.append(message)
    except ProtocolError:
        return None
    assert reader.waiting_bytes <= MOST_MESSAGE_BYTES + 4
    return messages


def check(data: bytes) -> None:
    """Read it as messages, as a path, as a packet and as a number."""
    whole = _read([data])
    assert whole == _read(cut(data))
    for message in whole or ():
        assert len(message) <= 9
        assert len(b"\0".join(message)) <= MOST_MESSAGE_BYTES
        for field in message:
            _check_path(field)
            _check_number(field)
    _check_path(data)
    try:
        fields = protocol.decode(data, 8)
    except ProtocolError:
        return
    assert protocol.encode(*fields) == data
    assert 0 < len(fields) <= 8


def _check_path(path: bytes) -> None:
    try:
        checked = check_relative(path)
    except ProtocolError:
        return
    names = checked.split(b"/")
    assert names
    assert not {b"", b".", b".."} & set(names)
    assert all(len(name) <= 255 for name in names)


def _check_number(field: bytes) -> None:
    try:
        number = protocol.number(field, 1000)
    except ProtocolError:
        return
    assert 0 <= number <= 1000
    assert protocol.encode_number(number) == field.lstrip(b"0") or not number or field.startswith(b"0")


def seeds() -> Iterator[bytes]:
    """Messages and packets of each kind."""
    for fields in ((b"entry", b"a/b", b"12", b"33188"), (b"ok", b"1", b"x"), (b"exit", b"0", b"1", b"2", b"3", b"1")):
        packet = b"\0".join(fields)
        yield packet
        yield len(packet).to_bytes(4, "big") + packet
    yield b"a/../b"
    yield b"hello"
