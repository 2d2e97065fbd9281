"""Reports and exported variables of a session's shell: bounded, and the values that bash itself would have."""

from collections.abc import Iterator

from cove.agent.protocol import ProtocolError
from cove.core.shell_exports import parse_exports
from cove.core.shell_protocol import Report, ReportDecoder
from fuzz.splitting import cut

_MOST_STEPS = 100


def _read(pieces: Iterator[bytes] | list[bytes]) -> list[Report] | None:
    decoder = ReportDecoder()
    reports: list[Report] = []
    try:
        for piece in pieces:
            reports += decoder.feed(piece)
    except ProtocolError:
        return None
    return reports


def check(data: bytes) -> None:
    """Read it as reports, as declarations, and as the value of one."""
    whole, pieces = _read([data]), _read(cut(data))
    assert whole is None or whole == pieces  # in pieces there may be more than at once
    for report in whole or ():
        assert 0 <= report.status <= 255
        assert "\0" not in report.cwd
    found = _exports(data)
    for name, value in (found or {}).items():
        assert name.isidentifier()
        assert _exports(_declaration(name, value)) == {name: value}
    if b"\0" not in data:
        value = data.decode("utf-8", "surrogateescape")
        assert _exports(_declaration("NAME", value)) == {"NAME": value}


def _exports(text: bytes) -> dict[str, str] | None:
    steps = parse_exports(text)
    for _ in range(_MOST_STEPS):
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)
        except ProtocolError:
            return None
    raise AssertionError("more steps than bytes")


def _declaration(name: str, value: str) -> bytes:
    """Write a variable as bash does, between double quotes."""
    data = value.encode("utf-8", "surrogateescape")
    for mark in (b"\\", b'"', b"$", b"`"):
        data = data.replace(mark, b"\\" + mark)
    return b'declare -x %b="%b"\n' % (name.encode(), data)


def seeds() -> Iterator[bytes]:
    """Reports, and declarations of every form."""
    yield b"c1\x000\x00/workspace\x00i2\x00130\x00/tmp\x00"
    yield (
        b"declare -x A=\"b\\\"c\\$\"\ndeclare -x B=$'\\n\\033x\\''\ndeclare -x C\ndeclare -ax D=([0]=\"x\" [1]=$'y')\n"
    )
    yield b'declare -ix E="1"\ndeclare -x F=plain\n'
