"""Paths, messages and clones, decided without input or output."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cove.agent import files as agent_files
from cove.agent.protocol import ProtocolError
from cove.archive import unpacking
from cove.core.errand_protocol import MOST_MESSAGE_BYTES, MessageReader, check_relative
from cove.core.file_path import MOST_PATH_BYTES, below, decode_path, name_of, resolve_path
from cove.core.git_command import explain_failure, plan_clone
from cove.errors import GitTimeout, ValidationFailed

pytestmark = pytest.mark.pure

FIELD = st.binary(max_size=200).filter(lambda data: b"\0" not in data)
MESSAGES = st.lists(st.lists(FIELD, min_size=1, max_size=5), max_size=20)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", b"/base/a"),
        ("./a//b/.", b"/base/a/b"),
        ("../a", b"/base/../a"),
        ("/", b"/"),
        ("//x/", b"/x/"),
        (".", b"/base"),
        ("ü\udcff", b"/base/\xc3\xbc\xff"),
    ],
)
def test_a_path_becomes_absolute_and_keeps_its_meaning(path: str, expected: bytes) -> None:
    assert resolve_path("/base", path) == expected


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "x" * (MOST_PATH_BYTES + 1), 5])
def test_a_path_that_linux_cannot_take_is_refused(path: str) -> None:
    with pytest.raises(ValidationFailed):
        resolve_path("/", path)


def test_names_and_paths_below() -> None:
    assert (name_of(b"/a/b/"), name_of(b"/")) == (b"b", b"/")
    assert (below(b"/", b"x"), below(b"/a/", b"x"), below(b"/a", b"x")) == (b"/x", b"/a/x", b"/a/x")
    assert decode_path(b"\xff") == "\udcff"


def encode(message: list[bytes]) -> bytes:
    data = b"\0".join(message)
    return len(data).to_bytes(4, "big") + data


@given(MESSAGES, st.lists(st.integers(0, 500)))
@example([[b"ab", b"c"], [b"d"]], [2, 5])
def test_messages_are_the_same_however_they_are_cut(messages: list[list[bytes]], cuts: list[int]) -> None:
    data = b"".join(map(encode, messages))
    reader, found, at = MessageReader(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        reader.feed(data[at:cut] if cut > at else b"")
        at = max(at, cut)
        while (message := reader.take()) is not None:
            found.append(message)
    assert found == messages
    assert not reader.waiting_bytes


def test_a_message_beyond_the_limit_is_a_fault_before_it_is_read() -> None:
    reader = MessageReader()
    reader.feed(b"\0\0")
    assert reader.take() is None
    reader.feed((MOST_MESSAGE_BYTES + 1).to_bytes(4, "big")[2:] + b"\xff\xff")
    with pytest.raises(ProtocolError):
        reader.take()


def test_a_message_of_separators_alone_is_not_taken_apart() -> None:
    reader = MessageReader()
    reader.feed(encode([b""] * MOST_MESSAGE_BYTES))
    assert len(reader.take() or []) < 10


@pytest.mark.parametrize("path", [b"a", b"a/b", b"...", b"\xff/\n", b"d/" * 2000 + b"x"])
def test_a_path_below_a_directory_is_taken(path: bytes) -> None:
    assert check_relative(path) == path


@pytest.mark.parametrize(
    "path",
    [b"", b"/", b"/a", b"a/", b"a//b", b".", b"a/./b", b"..", b"a/../b", b"a\0b", b"a" * 256, b"a/" * 3000 + b"a"],
)
def test_a_path_that_is_not_below_its_directory_is_refused(path: bytes) -> None:
    with pytest.raises(ProtocolError):
        check_relative(path)


def test_a_clone_is_a_plain_command_and_its_secret_is_beside_it() -> None:
    clone = plan_clone("https://me:pass%2Fword@host:8443/x.git", None, branch="b", depth=3, token=None).command
    assert clone.argv == (
        "git",
        "clone",
        "--quiet",
        "--branch",
        "b",
        "--depth",
        "3",
        "--",
        "https://host:8443/x.git",
        "x",
    )
    assert clone.env["GIT_CONFIG_KEY_1"] == "credential.https://host:8443.helper"
    assert (clone.env["COVE_GIT_USER"], clone.env["COVE_GIT_TOKEN"]) == ("me", "pass/word")
    assert clone.hide("pass/word and pass%2Fword") == "*** and ***"


def test_a_clone_without_credentials_has_none() -> None:
    clone = plan_clone("/srv/x", "y", branch=None, depth=None, token=None).command
    assert (clone.argv[-1], clone.secrets) == ("y", ())
    assert not [name for name in clone.env if name.startswith(("GIT_CONFIG", "COVE"))]
    assert isinstance(explain_failure(clone, "", timed_out=True), GitTimeout)


def test_what_is_half_unpacked_has_the_name_that_watches_leave_out() -> None:
    assert unpacking.TEMPORARY == agent_files.TEMPORARY
