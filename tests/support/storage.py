"""An S3 server on loopback."""

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# moto checks that there is a signature, not what it says.
_SIGNED = "AWS4-HMAC-SHA256 Credential={}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@dataclass(frozen=True)
class Storage:
    """A running server; `access` is the id of a key that it accepts."""

    url: str
    process: "subprocess.Popen[bytes]"
    access: str = "AKIDEXAMPLE"
    secret: str = "very-secret-of-the-bucket"

    @property
    def credentials(self) -> str:
        return f"{self.access}:{self.secret}"

    def ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        headers = {"Authorization": _SIGNED.format(self.access), "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            content: bytes = answer.read()
            return content

    def keys(self, bucket: str) -> list[str]:
        return re.findall("<Key>(.*?)</Key>", self.ask("GET", f"/{bucket}?list-type=2").decode())


@contextmanager
def storage_server() -> Iterator[Storage]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    storage = Storage(f"http://127.0.0.1:{port}", process)
    try:
        _wait(storage)
        yield storage
    finally:
        process.kill()
        process.wait()


def _wait(storage: Storage) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            storage.ask("GET", "/moto-api/data.json")
            return
        except (OSError, urllib.error.URLError):
            assert time.monotonic() < until, "the storage server did not start"
            time.sleep(0.05)  # nothing else tells that it listens
