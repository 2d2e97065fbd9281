"""Output of a `git` that may be another program, and messages of the egress process: read, or a documented error."""

from collections.abc import Iterator

import msgspec

from cove.core.cassette import Player, Recorded, encode_recorded
from cove.core.egress_protocol import Report, decode_from_egress, decode_totals, encode
from cove.core.git_output import parse_branches, parse_commit, parse_status
from cove.errors import GitFailed


def check(data: bytes) -> None:
    """Read it as each of them."""
    for parse in (parse_status, parse_branches, parse_commit):
        try:
            parse(data)
        except GitFailed:
            continue
    assert all(0 <= count < 1 << 64 for count in msgspec.structs.astuple(decode_totals(data)))
    try:
        message = decode_from_egress(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    else:
        assert decode_from_egress(encode(message)) == message
        assert not isinstance(message, Report) or isinstance(message.events, tuple)
    _check_cassette(data)


def _check_cassette(data: bytes) -> None:
    try:
        player = Player(data)
    except ValueError:
        return
    for known in msgspec.json.Decoder(Recorded).decode_lines(data):
        recorded = player.take(*known.key)
        assert recorded is not None
        assert isinstance(recorded.body, bytes)
        assert Player(encode_recorded(recorded)).take(*known.key) == recorded


def seeds() -> Iterator[bytes]:
    """Output of git, reports, and cassettes."""
    commit = b"0" * 40
    changed = b"1 .M N... 1 2 3 a b file\0" + b"2 R. N... 1 2 3 a b R100 new\0old\0? x\0"
    yield b"# branch.oid %b\0# branch.head main\0# branch.ab +1 -2\0" % commit + changed
    yield b"*\0refs/heads/main\0%b\0origin/main\n" % commit
    yield b'{"type":"report","events":[],"lost":2}'
    yield b'{"type":"configured","certificate":null}'
    yield b'{"method":"GET","url":"https://a/","request_sha256":"00","status":200,"headers":[["a","b"]],"text":"x"}\n'
    yield b'{"method":"GET","url":"https://a/","request_sha256":"00","status":200,"base64":"eA=="}\n'
    yield b'{"x":' + b"[" * 1500 + b"]" * 1500 + b"}"
