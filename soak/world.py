"""Hosts that sandboxes with a policy can reach: a name server and a web server on loopback; storage for buckets."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUDPServer

HOSTS = ("a.example", "b.example")
PROGRAMS = ("cat", "chmod", "head", "id", "kill", "ls", "mkdir", "rm", "sh", "sleep", "tail", "touch", "yes")
BUCKET = "soak"
_BUSYBOX = Path("/bin/busybox")
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/var/web:/bin/sh\n"
_KEYS = "AKIDEXAMPLE:very-secret-of-the-bucket"
# moto checks that there is a signature, not what it says.
_SIGNED = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
_START_SECONDS = 60.0


class _Names(BaseRequestHandler):
    """Answers that every name is at 127.0.0.1."""

    def handle(self) -> None:
        data, sock = self.request
        sock.sendto(_answer(data), self.client_address)


class _Web(BaseHTTPRequestHandler):
    """Says which host was asked."""

    def do_GET(self) -> None:
        """Answer."""
        body = f"hello from {self.headers['Host'].partition(':')[0]}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@dataclass
class World:
    """What there is beside Cove. `image` is a root file system, None where there is no busybox."""

    resolver: str
    port: int
    directory: Path
    image: Path | None = None
    storage: str | None = None
    keys: Path = field(init=False)

    def __post_init__(self) -> None:
        self.keys = self.directory / "keys"
        self.keys.write_text(_KEYS)
        self.keys.chmod(0o600)

    def environment(self) -> dict[str, str]:
        """What a program has to know that makes sandboxes itself."""
        return {"COVE_RESOLVER": self.resolver, "BUCKET_KEYS": _KEYS}

    def configuration(self) -> str:
        """What a server has to know."""
        host = "" if self.storage is None else self.storage.removeprefix("http://")
        private = [*HOSTS, *([host] if host else [])]
        return (
            f"allow_buckets = {[host] if host else []}\n"
            f'[network]\nresolver = "{self.resolver}"\nprivate = {private}\n'
            f'[network.secrets.BUCKET_KEYS]\nfile = "{self.keys}"\nhosts = ["127.0.0.1"]\n'
        )

    def stored(self, key: str) -> bytes | None:
        """What the bucket has under that key. Blocks."""
        try:
            return self._ask("GET", f"/{BUCKET}/{key}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(f"{self.storage}{path}", headers={"Authorization": _SIGNED}, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            content: bytes = answer.read()
            return content

    def wait_for_storage(self) -> None:
        """Make the bucket as soon as the server answers. Blocks."""
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._ask("PUT", f"/{BUCKET}")
                return
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)  # nothing else tells that it listens


@contextmanager
def running_world(*, with_storage: bool) -> Iterator[World]:
    """Start everything that can be had here."""
    with (
        tempfile.TemporaryDirectory(prefix="cove-soak-world-") as path,
        ThreadingUDPServer(("127.0.0.1", 0), _Names) as names,
        ThreadingHTTPServer(("127.0.0.1", 0), _Web) as web,
    ):
        for server in (names, web):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        directory = Path(path)
        world = World(f"127.0.0.1:{names.server_address[1]}", web.server_port, directory, _image(directory))
        try:
            with _storage(world) if with_storage else _nothing():
                yield world
        finally:
            names.shutdown()
            web.shutdown()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _storage(world: World) -> Iterator[None]:
    """An S3 server, where there is one and rclone can serve what it has."""
    is_served = os.access("/dev/fuse", os.R_OK | os.W_OK)
    if shutil.which("rclone") is None or importlib.util.find_spec("moto") is None or not is_served:
        yield
        return
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    world.storage = f"http://127.0.0.1:{port}"
    try:
        world.wait_for_storage()
        yield
    finally:
        process.kill()
        process.wait()


def _image(directory: Path) -> Path | None:
    if not _BUSYBOX.exists():
        return None
    root = directory / "root"
    for name in ("bin", "etc", "usr/bin", "var/web", "root"):
        (root / name).mkdir(parents=True)
    shutil.copy(_BUSYBOX, root / "bin/busybox")
    for name in PROGRAMS:
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text(_PASSWD)
    (root / "etc/group").write_text("root:x:0:\nweb:x:34:\n")
    return root


def _answer(query: bytes) -> bytes:
    """One question of RFC 1035, answered: the address of whatever name, and nothing of another type."""
    end = query.index(b"\0", 12) + 5
    is_address = query[end - 4 : end - 2] == b"\0\1"
    header = query[:2] + b"\x81\x80\0\1" + (b"\0\1" if is_address else b"\0\0") + bytes(4)
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\0\0\1"
    return header + query[12:end] + (record if is_address else b"")
