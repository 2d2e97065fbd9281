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
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from support.image_files import ImageFiles

REGISTRY = shutil.which("docker-registry")


@contextlib.contextmanager
def running_registry(directory: Path) -> Iterator[str]:
    """Run Debian's registry; gives its address."""
    assert REGISTRY is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    configuration = directory / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(directory / "registry")}}
    configuration.write_text(
        json.dumps({"version": 0.1, "log": {"level": "error"}, "storage": storage, "http": {"addr": address}})
    )
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


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
