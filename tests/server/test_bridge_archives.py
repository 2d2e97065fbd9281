"""The workspace as an archive."""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from support.bridge_client import BridgeClient, fresh_sandbox
from support.bridge_fixtures import bridge, server
from support.servers import Server

__all__ = ["bridge", "server"]  # fixtures

pytestmark = pytest.mark.pure

LIMIT = 32 << 20


def persist(bridge: BridgeClient, query: str = "") -> tarfile.TarFile:
    reply = bridge.call("POST", f"persist{query}", b"")
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/octet-stream"
    return tarfile.open(fileobj=io.BytesIO(reply.body), mode="r:")


def make_archive(*members: tuple[str, bytes | None], **fields: Any) -> bytes:
    """Files with their contents, or whatever `fields` make of a name with None."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                for key, value in fields.items():
                    setattr(info, key, value)
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content or b""))
    return data.getvalue()


def test_an_archive_has_everything_with_modes_and_relative_names(bridge: BridgeClient) -> None:
    bridge.shell("mkdir -p b/c empty; echo x > b/c/file; chmod 750 b/c/file; touch .hidden; ln -s c/file b/link")
    with persist(bridge) as archive:
        names = archive.getnames()
        assert names == [".", "./.hidden", "./b", "./b/c", "./b/c/file", "./b/link", "./empty"]
        assert archive.getmember("./b/c/file").mode == 0o750
        assert archive.getmember("./b/link").linkname == "c/file"
        assert archive.getmember("./empty").isdir()
        content = archive.extractfile("./b/c/file")
        assert content is not None
        assert content.read() == b"x\n"


def test_names_on_the_wire_are_those_of_tar(bridge: BridgeClient) -> None:
    bridge.shell("mkdir d; touch f")
    data = bridge.call("POST", "persist", b"").body
    assert [data[at : at + 100].rstrip(b"\0") for at in (0, 512, 1024)] == [b"./", b"./d/", b"./f"]


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("", {"a", "a/x", "b", "b/c", "b/c/y", "b/a", "c"}),
        ("?excludes=", {"a", "a/x", "b", "b/c", "b/c/y", "b/a", "c"}),
        ("?excludes=a", {"b", "b/c", "b/c/y", "b/a", "c"}),
        ("?excludes=a,b/c", {"b", "b/a", "c"}),
        ("?excludes=,,./a,,c,", {"b", "b/c", "b/c/y", "b/a"}),
        ("?excludes=b%2Fc&root=/etc", {"a", "a/x", "b", "b/a", "c"}),
        ("?excludes=b/", {"a", "a/x", "c"}),
        ("?root=/etc", {"a", "a/x", "b", "b/c", "b/c/y", "b/a", "c"}),
    ],
)
def test_excluded_paths_are_left_out_with_all_below_them(bridge: BridgeClient, query: str, left: set[str]) -> None:
    bridge.shell("mkdir -p a b/c b/a; touch a/x b/c/y c")
    with persist(bridge, query) as archive:
        assert set(archive.getnames()) == {".", *(f"./{name}" for name in left)}


def test_spaces_belong_to_the_names_that_are_excluded(bridge: BridgeClient) -> None:
    bridge.exec("touch", "a", " a", "b ", "b")
    with persist(bridge, "?excludes=%20a,b%20") as archive:
        assert archive.getnames() == [".", "./a", "./b"]


def test_an_exclude_that_goes_up_is_400(bridge: BridgeClient) -> None:
    for query in ("..", "a,../b", "a/../b"):
        status, code, text = bridge.call("POST", f"persist?excludes={query}", b"").refusal
        assert (status, code) == (400, "invalid_request")
        assert 'exclude paths must not contain ".."' in text


def test_what_no_client_can_restore_is_written_so_that_it_can(bridge: BridgeClient) -> None:
    bridge.shell(
        "echo x > a; ln a hard; mkfifo pipe; mkdir d; ln -s /workspace/a absolute; ln -s /workspace//d/x d/up; "
        "ln -s /workspace top; ln -s /usr/bin/env out; python3 -c 'import socket; socket.socket(1).bind(\"s\")'"
    )
    with persist(bridge) as archive:
        kinds = {name: archive.getmember(name) for name in archive.getnames()}
        assert kinds.keys() == {".", *(f"./{name}" for name in ("a", "absolute", "d", "d/up", "hard", "out", "top"))}
        assert kinds["./hard"].isreg()
        assert kinds["./hard"].size == 2
        assert kinds["./absolute"].linkname == "a"
        assert kinds["./d/up"].linkname == "../d/x"
        assert kinds["./top"].linkname == "."
        assert kinds["./out"].linkname == "/usr/bin/env"


def test_a_workspace_that_cannot_be_read_is_502(bridge: BridgeClient) -> None:
    bridge.shell("mkdir locked; chmod 0 locked")
    assert bridge.call("POST", "persist", b"").refusal[:2] == (502, "workspace_archive_read_error")


def test_a_large_workspace_is_streamed(bridge: BridgeClient) -> None:
    bridge.shell("head -c 60000000 /dev/zero > large")
    with persist(bridge) as archive:
        assert archive.getmember("./large").size == 60_000_000


def test_what_was_persisted_can_be_hydrated(bridge: BridgeClient, server: Server) -> None:
    bridge.shell("mkdir -p a/b; echo x > a/b/c; chmod 741 a/b/c; ln -s b/c a/l; ln -s /usr/bin/env out; ln a/b/c hard")
    data = bridge.call("POST", "persist", b"").body
    with fresh_sandbox(server) as other:
        reply = other.call("POST", "hydrate?root=/etc", data, Content_Type="application/octet-stream")
        assert (reply.status, reply.json) == (200, {"ok": True})
        listed = "find . -printf '%P %y %m %l\\n' | sort"
        assert other.shell(listed).stdout == bridge.shell(listed).stdout
        assert other.exec("cat", "a/l").stdout == b"x\n"


def test_hydrate_overwrites_and_leaves_other_files_alone(bridge: BridgeClient) -> None:
    bridge.shell("echo old > a; echo mine > mine; mkdir d; echo kept > d/kept")
    assert bridge.call("POST", "hydrate", make_archive(("a", b"new"), ("./d/x", b"x"))).status == 200
    assert bridge.shell("cat a mine d/kept d/x").stdout == b"newmine\nkept\nx"


def test_hydrate_replaces_an_empty_directory_by_a_file_and_no_other(bridge: BridgeClient) -> None:
    bridge.shell("mkdir empty full; echo kept > full/kept")
    assert bridge.call("POST", "hydrate", make_archive(("empty", b"file"))).status == 200
    assert bridge.shell("cat empty").stdout == b"file"
    refusal = bridge.call("POST", "hydrate", make_archive(("new", b"x"), ("full", b"file"))).refusal
    assert refusal[:2] == (502, "workspace_archive_write_error")
    assert bridge.shell("cat full/kept; ls").stdout == b"kept\nempty\nfull\n"


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
def test_compressed_archives_are_unpacked_too(bridge: BridgeClient, compress: Callable[[bytes], bytes]) -> None:
    content = bytes(range(256)) * 20_000
    archive = make_archive(("a", content), ("b", b"b"))
    assert bridge.call("POST", "hydrate", compress(archive)).status == 200
    assert bridge.call("GET", "file/workspace/a").body == content
    assert bridge.exec("cat", "b").stdout == b"b"


def test_a_compressed_archive_in_several_parts_is_one(bridge: BridgeClient) -> None:
    archive = make_archive(("a", b"a" * 5000))
    assert bridge.call("POST", "hydrate", gzip.compress(archive[:700]) + gzip.compress(archive[700:])).status == 200
    assert bridge.call("GET", "file/workspace/a").body == b"a" * 5000


def test_an_empty_body_is_400(bridge: BridgeClient) -> None:
    assert bridge.call("POST", "hydrate", b"").refusal == (400, "invalid_request", "Empty tar payload")


def test_more_than_32_mebibytes_are_400_and_change_nothing(bridge: BridgeClient) -> None:
    archive = make_archive(("a", bytes(LIMIT)))
    small = make_archive(("a", b"a")).ljust(1 << 20, b"\0")
    for body in (
        archive,
        iter([archive[: 1 << 20], archive[1 << 20 :]]),
        iter([small] * 33),
        iter([b"this is no archive" * 100_000] * 20),
    ):
        status, code, text = bridge.send("POST", f"{bridge.root}/hydrate", body).refusal
        assert (status, code) == (400, "invalid_request")
        assert "tar payload too large" in text
    assert bridge.exec("ls", "-A").stdout == b""


def test_an_archive_of_exactly_32_mebibytes_is_fine(bridge: BridgeClient) -> None:
    archive = make_archive(("a", bytes(LIMIT - 1024 - 512))).rstrip(b"\0")
    assert bridge.call("POST", "hydrate", archive.ljust(LIMIT, b"\0")).status == 200
    assert bridge.exec("stat", "-c", "%s", "a").stdout == b"%d\n" % (LIMIT - 1024 - 512)


REFUSED = {
    "no archive": b"this is no archive" * 100,
    "a short one": make_archive(("a", b"x" * 5000))[:2000],
    "damaged gzip": gzip.compress(make_archive(("a", b"x")))[:-20],
    "bad gzip": b"\x1f\x8b" + b"x" * 600,
    "a way up": make_archive(("../evil", b"x")),
    "a way up in the middle": make_archive(("a/../../evil", b"x")),
    "a way up after good ones": make_archive(("good", b"x"), ("../evil", b"x")),
    "through a link": make_archive(("l", None), ("l/evil", b"x"), type=tarfile.SYMTYPE, linkname="/tmp"),
    "a device": make_archive(("d", None), type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "a hard link out": make_archive(("h", None), type=tarfile.LNKTYPE, linkname="/etc/passwd"),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_archive_or_leads_out_is_502_and_changes_nothing(bridge: BridgeClient, body: bytes) -> None:
    assert bridge.call("POST", "hydrate", body).refusal[:2] == (502, "workspace_archive_write_error")
    assert bridge.shell("ls -A /workspace /tmp; ls /evil 2>/dev/null").stdout == b"/tmp:\n\n/workspace:\n"


def test_absolute_names_lose_their_slash(bridge: BridgeClient) -> None:
    assert bridge.call("POST", "hydrate", make_archive(("/tmp/x", b"x"), ("//y", b"y"))).status == 200
    assert bridge.shell("cat /workspace/tmp/x /workspace/y; ls -A /tmp").stdout == b"xy"
