"""Answers of registries: manifests, redirects, challenges and tokens of a server that is not trusted."""

import socket
from collections.abc import Iterator

from cove.errors import CoveError, Internal
from cove.images.credentials import Credentials
from cove.images.manifest import Descriptor, Manifest, digest_of
from cove.images.reference import parse_reference
from cove.images.registry import Registry

_SECRET = "c2VjcmV0"


class _Server:
    """Gives one answer after the other, each on a connection of its own, and keeps what was asked."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, int, socket.socket]] = []

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(seconds)
        theirs.sendall(self._answers.pop(0) if self._answers else b"")
        theirs.shutdown(socket.SHUT_WR)
        self.asked.append((host, port, theirs))
        return ours

    def close(self) -> list[tuple[str, int, bytes]]:
        """End, and say who was asked what."""
        found = []
        for host, port, theirs in self.asked:
            theirs.setblocking(False)
            try:
                data = theirs.recv(1 << 16)
            except OSError:
                data = b""
            theirs.close()
            found.append((host, port, data))
        return found


def check(data: bytes) -> None:
    """Answers with NULs between them, to a pull from a registry on this machine."""
    server = _Server(data.split(b"\0")[:8])
    registry = Registry(parse_reference("localhost:5000/a/b:c"), Credentials("user", _SECRET), connect=server.connect)
    try:
        assert isinstance(registry.manifest(), Manifest)
        content = b"blob"
        assert registry.document(Descriptor(digest_of(content), len(content))) == content
    except CoveError as error:
        assert not isinstance(error, Internal), error
    finally:
        asked = server.close()
    assert len(asked) <= 24
    for host, _, request in asked:
        assert b"authorization" not in request.lower() or host == "localhost", "credentials went elsewhere"
        assert request.count(b"\r\n\r\n") <= 1, "one request became two"


def seeds() -> Iterator[bytes]:
    """Manifests, an index, redirects, challenges, and a token."""
    zeros = b"0" * 64
    manifest = b'{"config":{"digest":"sha256:%b","size":1},"layers":[]}' % zeros
    index = b'{"manifests":[{"digest":"%b","size":1}]}' % digest_of(manifest).encode()

    def answer(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
        return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)

    yield answer(manifest) + b"\0" + answer(b"blob")
    yield answer(index) + b"\0" + answer(manifest) + b"\0" + answer(b"blob")
    yield answer(b"", b"302 Found", b"Location: http://elsewhere.example/x\r\n") + b"\0" + answer(manifest)
    yield answer(b"", b"307 T", b"Location: /v2/x y\r\n") + b"\0" + answer(manifest)
    challenge = b'WWW-Authenticate: Bearer realm="http://localhost:5000/token",service="s",scope="p"\r\n'
    yield answer(b"", b"401 U", challenge) + b"\0" + answer(b'{"token":"t"}') + b"\0" + answer(manifest)
    yield answer(b"", b"401 U", b"WWW-Authenticate: Basic realm=x\r\n") + b"\0" + answer(manifest)
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
