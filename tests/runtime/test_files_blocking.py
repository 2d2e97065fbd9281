"""The same files without asyncio."""

import pytest

from cove import FileEventKind, FileNotFound, Sandbox
from cove.blocking.portal import get_portal


@pytest.fixture(scope="module", autouse=True)
def running_portal() -> None:
    """Before any test: the loop's thread stays for all of them."""
    get_portal()


def test_the_blocking_files_are_the_same_without_await() -> None:
    with Sandbox.create() as sandbox:
        sandbox.files.write("a/x", b"1")
        assert sandbox.files.read("a/x") == b"1"
        assert b"".join(sandbox.files.read_stream("a/x")) == b"1"
        assert [info.name for info in sandbox.files.list()] == ["a"]
        with pytest.raises(FileNotFound):
            sandbox.files.read("missing")
        assert sandbox.create_session(cwd="a").files.exists("x")


def test_a_plain_iterable_is_written_as_a_stream_and_its_failure_leaves_the_old_file() -> None:
    def failing() -> "list[bytes]":
        raise ValueError("no more")

    with Sandbox.create() as sandbox:
        assert sandbox.files.write_stream("x", (bytes([letter]) for letter in b"abc")) == 3
        assert sandbox.files.write_stream("x", [b"d", b"ef"]) == 3
        with pytest.raises(ValueError, match="no more"):
            sandbox.files.write_stream("x", (failing() for _ in range(2)))  # type: ignore[misc]  # it yields nothing
        assert sandbox.files.read("x") == b"def"


def test_a_plain_loop_over_events_can_be_left() -> None:
    with Sandbox.create() as sandbox:
        seen = []
        for event in sandbox.files.watch():
            seen.append((event.kind, event.path))
            if event.kind is FileEventKind.WATCHING:
                sandbox.exec("mkdir new")
            else:
                break
        assert seen == [(FileEventKind.WATCHING, "/workspace"), (FileEventKind.CREATE, "/workspace/new")]
