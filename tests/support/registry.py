"""A registry on loopback: Debian's `docker-registry`, and one by hand that behaves badly."""

import base64
import contextlib
import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from support.image_files import ImageFiles

REGISTRY = shutil.which("docker-registry")


@contextlib.contextmanager
def running_registry(directory: Path, **settings: object) -> Iterator[str]:
    """Run Debian's registry with more settings; gives its address."""
    assert REGISTRY is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    configuration = directory / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(directory / "registry")}}
    basics = {"version": 0.1, "log": {"level": "error"}, "storage": storage, "http": {"addr": address}}
    configuration.write_text(json.dumps({**basics, **settings}))
    process = subprocess.Popen([REGISTRY, "serve", str(configuration)], stderr=subprocess.DEVNULL)
    try:
        _wait_for(address)
        yield address
    finally:
        process.kill()
        process.wait()


def _wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    for _ in range(500):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
            return
        time.sleep(0.02)
    raise TimeoutError(f"no registry at {address}")


def push(address: str, name: str, tag: str, image: ImageFiles) -> str:
    """Push an OCI layout by hand; returns the manifest's digest."""
    index = json.loads(image.files["index.json"])
    digest = str(index["manifests"][0]["digest"])
    for path, data in image.files.items():
        if path.startswith("blobs/") and digest.removeprefix("sha256:") not in path:
            _push_blob(f"http://{address}/v2/{name}", "sha256:" + path.rpartition("/")[2], data)
    manifest = image.files[f"blobs/sha256/{digest.removeprefix('sha256:')}"]
    _request(
        f"http://{address}/v2/{name}/manifests/{tag}",
        "PUT",
        manifest,
        {"Content-Type": json.loads(manifest)["mediaType"]},
    )
    return digest


def _push_blob(base: str, digest: str, data: bytes) -> None:
    location = _request(f"{base}/blobs/uploads/", "POST", b"", {})
    mark = "&" if "?" in location else "?"
    _request(f"{location}{mark}digest={digest}", "PUT", data, {"Content-Type": "application/octet-stream"})


def _request(url: str, method: str, data: bytes, headers: dict[str, str]) -> str:
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return str(answer.headers.get("Location", ""))


Answerer = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def running_fake(answer: Answerer) -> Iterator[str]:
    """Run a server whose every GET is answered by the test."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that its end waits for them
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply(
    handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes = b"", headers: dict[str, str] | None = None
) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


class TokenServer:
    """Gives tokens that Debian's registry takes: signed by a key whose certificate it has."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[str] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(name, name, self._key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.bundle = directory / "tokens.pem"
        self.bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def settings(self, address: str) -> dict[str, object]:
        """Return what the registry is to be told."""
        where = {"realm": f"http://{address}/token", "service": "made", "issuer": "tokens"}
        return {"auth": {"token": {**where, "rootcertbundle": str(self.bundle)}}}

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Answer by a token for what is asked for."""
        self.asked.append(request.path)
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query)
        kind, name, actions = query["scope"][0].split(":")
        now = int(time.time())
        claims = {"iss": "tokens", "sub": "", "aud": query["service"][0], "exp": now + 300, "nbf": now - 60, "iat": now}
        access = [{"type": kind, "name": name, "actions": actions.split(",")}]
        token = self._sign({**claims, "jti": str(len(self.asked)), "access": access})
        reply(request, 200, json.dumps({"token": token}).encode())

    def _sign(self, claims: dict[str, object]) -> str:
        chain = [base64.b64encode(self._certificate.public_bytes(serialization.Encoding.DER)).decode()]
        head = {"typ": "JWT", "alg": "RS256", "x5c": chain}
        text = ".".join(_encode(json.dumps(each).encode()) for each in (head, claims))
        return f"{text}.{_encode(self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
