"""Multipart bodies, whole and in pieces, honest and forged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.multipart import MultipartParser, Part, PartEnd, boundary_of
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure

BOUNDARY = b"bound"


def render(parts: list[tuple[str, bytes]]) -> bytes:
    head = 'Content-Disposition: form-data; name="file"; filename="%s"\r\nContent-Type: text/plain'
    rendered = [b"--bound\r\n" + (head % name).encode() + b"\r\n\r\n" + content + b"\r\n" for name, content in parts]
    return b"".join(rendered) + b"--bound--\r\n"


def parse(pieces: list[bytes]) -> list[tuple[str | None, bytes]]:
    parser = MultipartParser(BOUNDARY)
    found: list[tuple[str | None, bytes]] = []
    is_open = False
    for piece in pieces:
        for event in parser.feed(piece):
            if isinstance(event, Part):
                assert not is_open
                is_open = True
                found.append((event.file_name, b""))
            elif isinstance(event, PartEnd):
                is_open = False
            else:
                found[-1] = (found[-1][0], found[-1][1] + event)
    parser.finish()
    assert not is_open
    return found


# Of these letters boundaries, and what nearly is one, are made often.
contents = st.binary(max_size=50) | st.lists(st.sampled_from([b"\r\n", b"--", b"bound", b"-", b"\r", b"x"])).map(
    b"".join
)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=20)


@given(st.lists(st.tuples(names, contents.filter(lambda content: b"\r\n--bound" not in b"\r\n" + content))), st.data())
def test_parts_come_out_as_they_went_in_however_they_are_cut(
    parts: list[tuple[str, bytes]], data: st.DataObject
) -> None:
    body = render(parts) + b"what follows is nobody's"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=20)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert parse(pieces) == parts


@given(st.binary(max_size=500) | st.lists(st.sampled_from([b"\r\n", b"--bound", b"--", b"x", b":"])).map(b"".join))
def test_any_bytes_are_parts_or_an_error(body: bytes) -> None:
    try:
        found = parse([body])
    except ValidationFailed:
        return
    assert sum(len(content) for _, content in found) <= len(body)


def test_a_name_is_a_whole_path_and_keeps_its_escapes() -> None:
    head = b'content-disposition: form-data; filename="/a/../b %22\\\\c"; name=file\r\nX: y'
    assert Part.parse(head) == Part("file", "/a/../b %22\\\\c")
    assert Part.parse(b"X: y") == Part("", None)
    assert parse([b"--bound\r\n\r\nnameless\r\n--bound--"]) == [(None, b"nameless")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--bound\r\nContent-Disposition: form-data\r\n\r\nno end",
        b"--boundless\r\n\r\nx\r\n--bound--",
        b"--bound\r\nX: " + b"y" * 20_000,
        b"--bound\r\nX: " + b"y" * 20_000 + b"\r\n\r\nz\r\n--bound--",
    ],
)
def test_what_is_no_multipart_body_is_refused(body: bytes) -> None:
    with pytest.raises(ValidationFailed):
        parse([body])


def test_what_follows_the_last_boundary_is_nobodys() -> None:
    assert parse([b"--bound\r\n\r\nx\r\n--bound--", b"\r\n--bound\r\n\r\ny\r\n--bound--"]) == [(None, b"x")]


def test_the_boundary_is_read_from_the_content_type() -> None:
    assert boundary_of("multipart/form-data; boundary=abc") == b"abc"
    assert boundary_of('multipart/form-data; Boundary="a b"; charset=x') == b"a b"
    for wrong in ("multipart/form-data", "multipart/form-data; boundary=" + "x" * 71):
        with pytest.raises(ValidationFailed):
            boundary_of(wrong)
