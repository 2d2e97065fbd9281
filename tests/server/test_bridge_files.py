"""Files of the bridge protocol."""

from collections.abc import Iterator

import pytest
from support.bridge_client import BridgeClient
from support.bridge_fixtures import bridge, server

__all__ = ["bridge", "server"]  # fixtures

pytestmark = pytest.mark.pure

LIMIT = 32 << 20


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\n",
        bytes(range(256)),
        b"\xef\xbb\xbfwith a mark",
        b"\xff\xfe",
        b'data: {"type":"metadata"}\n\n',
        b"x" * 3_000_000,
    ],
    ids=["empty", "text", "every byte", "byte order mark", "no UTF-8", "looks like events", "large"],
)
def test_a_file_comes_back_as_it_was_written(bridge: BridgeClient, content: bytes) -> None:
    written = bridge.call("PUT", "file/workspace/a.txt", content, Content_Type="application/octet-stream")
    assert (written.status, written.json) == (200, {"ok": True})
    read = bridge.call("GET", "file/workspace/a.txt")
    assert (read.status, read.headers["content-type"]) == (200, "application/octet-stream")
    assert read.body == content


def test_missing_directories_are_made_and_old_content_is_gone(bridge: BridgeClient) -> None:
    bridge.call("PUT", "file/workspace/a/b/c.txt", b"a longer content")
    bridge.call("PUT", "file/workspace/a/b/c.txt", b"short")
    assert bridge.exec("cat", "a/b/c.txt").stdout == b"short"


DECODED = (
    ("a%20b", "a b"),
    ("%C3%BC", "ü"),
    ("a%23b.txt", "a#b.txt"),
    ("a%3Fb", "a?b"),
    ("100%25.txt", "100%.txt"),
    ("a%2Bb", "a+b"),
    ("a+b2", "a+b2"),
    ("%5Bx%5D", "[x]"),
    ("&=;,@:$!'()*~", "&=;,@:$!'()*~"),
    ("%40%3A%2C%24%26%3B%3D", "@:,$&;="),
    ("%2541", "%41"),
    ("a%", "a%"),
    ("a%zz", "a%zz"),
    ("d%2Fe", "d/e"),
    ("./x//y/../z", "x/z"),
    ("%22%27%0a", "\"'\n"),
)


def test_names_are_decoded_completely(bridge: BridgeClient) -> None:
    for quoted, name in DECODED:
        assert bridge.call("PUT", f"file/workspace/{quoted}", name.encode()).status == 200, quoted
        assert bridge.exec("cat", f"/workspace/{name}").stdout == name.encode(), quoted
        assert bridge.call("GET", f"file/workspace/{quoted}").body == name.encode(), quoted


def test_a_name_that_is_not_utf8_is_a_name(bridge: BridgeClient) -> None:
    assert bridge.call("PUT", "file/workspace/%FF", b"x").status == 200
    assert bridge.shell("ls | od -An -tx1").stdout.split() == [b"ff", b"0a"]


def test_a_name_that_is_not_utf8_can_be_missing_too(bridge: BridgeClient) -> None:
    missing = bridge.call("GET", "file/workspace/%FF").refusal
    assert missing == (404, "workspace_read_not_found", "File not found: /workspace/?")
    bridge.shell("mkdir $(printf '\\377')")
    assert bridge.call("GET", "file/workspace/%FF").refusal[:2] == (502, "exec_transport_error")
    assert bridge.call("PUT", "file/workspace/%FF", b"x").refusal[:2] == (502, "workspace_archive_write_error")


OUTSIDE = (
    "etc/passwd",
    "workspacefoo",
    "workspace/../etc/passwd",
    "workspace/%2e%2e/etc/passwd",
    "workspace/..%2f..%2fetc/passwd",
    "workspace/%2E%2E%2Fetc%2Fpasswd",
    "..%2Fetc/passwd",
    "%2Fetc/passwd",
    "/etc/passwd",
    "tmp/x",
    "workspace/a/../../x",
    ".",
)


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_lead_out_are_403(bridge: BridgeClient, path: str) -> None:
    for method in ("GET", "PUT"):
        refusal = bridge.call(method, f"file/{path}", b"x" if method == "PUT" else None).refusal
        assert refusal == (403, "invalid_request", "path must resolve to a location within /workspace")


def test_an_empty_path_is_400(bridge: BridgeClient) -> None:
    for method in ("GET", "PUT"):
        for route in ("file/", "file"):
            refusal = bridge.call(method, route, b"x" if method == "PUT" else None).refusal
            assert refusal == (400, "invalid_request", "file path must not be empty")


def test_a_name_with_a_nul_is_400(bridge: BridgeClient) -> None:
    assert bridge.call("GET", "file/workspace/a%00b").refusal[:2] == (400, "invalid_request")


def test_a_session_id_is_checked_and_changes_nothing(bridge: BridgeClient) -> None:
    bridge.call("PUT", "file/workspace/a", b"x")
    for method in ("GET", "PUT"):
        refusal = bridge.call(method, "file/workspace/a", b"" if method == "PUT" else None, Session_Id="a..b").refusal
        assert refusal == (400, "invalid_request", "Invalid session ID format")
    assert bridge.call("GET", "file/workspace/a", Session_Id="s1").body == b"x"


@pytest.mark.parametrize("name", ["nothing", "no/parent", "file/below"])
def test_what_is_missing_is_404(bridge: BridgeClient, name: str) -> None:
    bridge.call("PUT", "file/workspace/file", b"x")
    refusal = bridge.call("GET", f"file/workspace/{name}").refusal
    assert refusal == (404, "workspace_read_not_found", f"File not found: /workspace/{name}")


def test_what_cannot_be_read_is_502(bridge: BridgeClient) -> None:
    bridge.shell("mkdir directory; echo x > secret; chmod 0 secret; mkfifo pipe")
    for name in ("directory", "secret", "pipe", ""):
        status, code, text = bridge.call("GET", f"file/workspace/{name}").refusal
        assert (status, code) == (502, "exec_transport_error")
        assert text.startswith("read failed: ")


def test_what_cannot_be_written_is_502(bridge: BridgeClient) -> None:
    bridge.shell("mkdir directory; mkdir locked; chmod 500 locked; touch file")
    for name in ("directory", "locked/a", "file/below", "n" * 300, ""):
        status, code, text = bridge.call("PUT", f"file/workspace/{name}", b"x").refusal
        assert (status, code) == (502, "workspace_archive_write_error"), name
        assert text.startswith("write failed: ")


def test_exactly_32_mebibytes_are_fine(bridge: BridgeClient) -> None:
    assert bridge.call("PUT", "file/workspace/large", bytes(LIMIT)).status == 200
    assert len(bridge.call("GET", "file/workspace/large").body) == LIMIT


def pieces(size: int) -> Iterator[bytes]:
    while size:
        yield bytes(min(size, 1 << 20))
        size -= min(size, 1 << 20)


def test_a_byte_more_is_413_and_no_file(bridge: BridgeClient) -> None:
    bridge.call("PUT", "file/workspace/old", b"old")
    for name in ("new", "old"):
        for body in (bytes(LIMIT + 1), pieces(LIMIT + 1), bytes(2 * LIMIT)):
            reply = bridge.send("PUT", f"{bridge.root}/file/workspace/{name}", body)
            assert reply.refusal[:2] == (413, "payload_too_large")
    assert bridge.shell("ls -A; cat old").stdout == b"old\nold"


def test_a_large_file_that_is_refused_for_its_name_is_heard_to_its_end(bridge: BridgeClient) -> None:
    bridge.exec("true")
    for path, status in (("etc/large", 403), ("", 400), ("workspace/a%00", 400)):
        assert bridge.call("PUT", f"file/{path}", bytes(2 * LIMIT)).refusal[:2] == (status, "invalid_request")


def test_links_lead_where_they_lead_inside_the_sandbox(bridge: BridgeClient) -> None:
    bridge.shell("ln -s / root; ln -s /tmp/there link; echo inside > /tmp/there")
    assert bridge.call("GET", "file/workspace/root/etc/hostname").body == bridge.exec("cat", "/etc/hostname").stdout
    assert bridge.call("GET", "file/workspace/link").body == b"inside\n"
    assert bridge.call("PUT", "file/workspace/link", b"changed").status == 200
    assert bridge.exec("cat", "/tmp/there").stdout == b"changed"
    assert bridge.call("PUT", "file/workspace/root/etc/passwd", b"x").status == 502
