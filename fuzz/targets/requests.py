"""Requests of clients: bodies and queries of every operation, of the bridge, and of E2B's control API."""

from collections.abc import Iterator

import msgspec

from cove.errors import ValidationFailed
from cove.server.bridge.protocol import (
    Refusal,
    decode_object,
    file_path,
    find_operation,
    is_inside,
    read_query,
    working_directory,
)
from cove.server.e2b import wishes
from cove.wire.coding import decode_json, decode_query, encode_json
from cove.wire.operations import OPERATIONS

_KINDS = sorted({operation.request for operation in OPERATIONS}, key=lambda kind: kind.__qualname__)
_WISHES = (wishes.CreateWish, wishes.PauseWish, wishes.SnapshotWish, wishes.ForkWish, wishes.RefreshWish)


def check(data: bytes) -> None:
    """The first byte chooses the operation; the rest is the body, the query and the path."""
    kind = _KINDS[data[0] % len(_KINDS)] if data else _KINDS[0]
    body = data[1:]
    text = body.decode("latin-1")
    _check_body(body, kind)
    try:
        value = decode_query(text, kind)
    except ValidationFailed:
        pass
    else:
        assert isinstance(value, kind)
    _check_bridge(body, text)
    for wish in _WISHES:
        try:
            msgspec.json.decode(body or b"{}", type=wish)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue


def _check_body(body: bytes, kind: type[msgspec.Struct]) -> None:
    try:
        value = decode_json(body, kind)
    except ValidationFailed:
        return
    assert decode_json(encode_json(value), kind) == value


def _check_bridge(body: bytes, text: str) -> None:
    try:
        assert isinstance(decode_object(body), dict)
        assert all(isinstance(each, str) for pair in read_query(text).items() for each in pair)
    except Refusal as refusal:
        refusal.response()
    for read in (file_path, working_directory):
        try:
            path = read(text)
        except Refusal as refusal:
            refusal.response()
            continue
        if path is not None:
            assert is_inside(path)
            assert "/../" not in f"{path}/"
    try:
        find_operation("GET", text)
    except Refusal as refusal:
        refusal.response()


def seeds() -> Iterator[bytes]:
    """Bodies and queries with fields of every type."""
    for number in range(len(_KINDS)):
        yield bytes((number,)) + b'{"command":"true","timeout":1.5,"env":{"A":"b"},"path":"/workspace/a","args":["a"]}'
        yield bytes((number,)) + b"path=/a&since=12&timeout=1&recursive=true&user=root"
    yield b"\0/v1/sandbox/abc/file/a/../../etc/passwd"
    yield b"\0%2e%2e/%2e%2e/etc"
    yield b'\0{"a":"\\ud800"}'
