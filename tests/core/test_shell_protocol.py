import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.shell_exports import environment

from cove import shell
from cove.agent.protocol import ProtocolError
from cove.core.shell_exports import parse_exports
from cove.core.shell_protocol import Report, ReportDecoder, encode_command, loop_script

pytestmark = pytest.mark.pure

FIELD = st.binary(max_size=20).map(lambda data: data.replace(b"\0", b""))
IDS = st.from_regex(r"\Ai?[0-9]{1,6}\Z")
REPORTS = st.lists(st.tuples(IDS, st.integers(0, 255), FIELD), max_size=5)


@given(reports=REPORTS, cuts=st.lists(st.integers(1, 7), max_size=60))
@example(reports=[("i7", 3, b"/a\xff"), ("8", 0, b"")], cuts=[4, 4])
def test_reports_are_found_however_their_bytes_arrive(reports: list[tuple[str, int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(b"%s\0%d\0%s\0" % (id.encode(), code, field) for id, code, field in reports)
    decoder = ReportDecoder()
    found: list[Report] = []
    for size in cuts:
        found += decoder.feed(stream[:size])
        stream = stream[size:]
    found += decoder.feed(stream)
    assert found == [Report(id, status, cwd.decode("utf-8", "surrogateescape")) for id, status, cwd in reports]


@pytest.mark.parametrize(
    "forged",
    [
        b"1\x000\0/\0" * 1000,
        b"\0\0\0",
        b"1\0\0/\0\0",
        b"1\0-1\0/\0\0",
        b"1\x00256\0/\0",
        b"1\x000x1\0/\0\0",
        b"1\x00 1\0/\0\0",
        b"1\x000001\0/\0\0",
        b"1 2\x000\0/\0\0",
        b"\xc2\xb2\x000\0/\0\0",
        "²\0".encode() + b"0\0/\0\0",
        b"../1\x000\0/\0\0",
        b"\n1\x000\0/\0\0",
    ],
)
def test_what_is_not_a_report_is_refused(forged: bytes) -> None:
    with pytest.raises(ProtocolError):
        ReportDecoder().feed(forged)


@given(st.binary(max_size=200))
def test_any_bytes_are_reports_or_refused(data: bytes) -> None:
    try:
        said = ReportDecoder().feed(data)
    except ProtocolError:
        return
    assert len(said) == data.count(0) // 3


def test_a_report_without_an_end_is_refused() -> None:
    decoder = ReportDecoder()
    assert decoder.feed(b"x" * (256 << 10)) == []
    with pytest.raises(ProtocolError):
        decoder.feed(b"x")


def test_a_shell_says_sixty_four_things_at_once_and_no_more() -> None:
    assert len(ReportDecoder().feed(b"1\x00255\0/\0" * 64)) == 64
    with pytest.raises(ProtocolError):
        ReportDecoder().feed(b"1\x00255\0/\0" * 65)


def test_exports_are_an_environment() -> None:
    text = b'declare -x A="1"\ndeclare -x B\ndeclare -ax C=([0]="1" [x]=$\'a\\)\')\n'
    assert environment(text + b"declare -x D=$'a\\nb'\ndeclare -x E=\"\"\n") == {"A": "1", "D": "a\nb", "E": ""}
    assert environment(b"declare -x A=plain\ndeclare -x B=") == {"A": "plain", "B": ""}
    assert environment(b"declare -x A=$'\\a\\e\\E\\x\\303\\274'") == {"A": "\a\x1b\x1bxü"}
    assert environment(b'declare -x A="\\a\\"\\$"') == {"A": '\\a"$'}


@pytest.mark.parametrize(
    "forged", [b"garbage", b'declare -x A="1"\nnope', b"declare -x 1=2", b'declare -x A="', b'declare -x A="1"x']
)
def test_forged_exports_are_refused(forged: bytes) -> None:
    with pytest.raises(ProtocolError):
        environment(forged)


def test_exports_are_parsed_in_steps() -> None:
    text = b'declare -x A="' + b"\\\\" * 3000 + b'"\n' + b"declare -x B\n" * 3000
    assert environment(text) == {"A": "\\" * 3000}
    assert len(list(parse_exports(text))) >= 6


@pytest.mark.timed
@pytest.mark.parametrize(
    "forged",
    [
        b'declare -x A="' + b"\\\\" * 500_000 + b'"',
        b"declare -x A=$'" + b"\\377" * 250_000 + b"'",
        b"declare -x A\n" * 80_000,
        b'declare -x A="' + b"\xff" * 1_000_000 + b'"',
        b"declare -ax A=(" + b" " * 1_000_000 + b")",
        b'declare -x A="1"\n' * 60_000,
    ],
    ids=["escapes", "octal", "unset", "bytes", "list", "many"],
)
def test_no_step_through_forged_exports_takes_long(forged: bytes) -> None:
    parsing = parse_exports(forged)
    longest = 0.0
    while True:
        began = time.thread_time()
        try:
            next(parsing)
        except StopIteration:
            break
        finally:
            longest = max(longest, time.thread_time() - began)
    assert longest < 0.010


@given(command=FIELD, stdout=FIELD.filter(bytes.isascii))
def test_the_command_file_has_six_fields(command: bytes, stdout: bytes) -> None:
    fields = encode_command("7", "/dev/null", stdout.decode(), "err", command).split(b"\0")
    assert fields[:4] + fields[5:] == [b"7", b"/dev/null", stdout, b"err", command, b""]


@pytest.mark.parametrize(
    ("command", "care"),
    [
        (b"ls", b""),
        (b"set -e", b"s"),
        (b"x; trap y EXIT", b"t"),
        (b"unset x", b"s"),
        (b"set -ev; trap y ERR", b"stv"),
        (b"set - v", b"s"),
        (b"shopt -s extdebug", b"v"),
    ],
)
def test_the_command_file_says_where_care_is_needed(command: bytes, care: bytes) -> None:
    assert encode_command("7", "in", "out", "err", command).split(b"\0")[4] == care


def test_the_loop_is_one_line_many_times() -> None:
    text = (Path(shell.__file__).parent / "loop.bash").read_text()
    lines = loop_script(text).splitlines()
    assert len(set(lines)) == 1
    assert len(lines) == 1000
    with pytest.raises(ValueError):
        loop_script("one\ntwo\n")
