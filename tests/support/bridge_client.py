"""A client of the bridge protocol that sends exactly what a test says."""

import base64
import http.client
import json
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.servers import Server, serving


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str, str]:
        """The status, the code and the text."""
        assert set(self.json) == {"error", "code"}
        return self.status, self.json["code"], self.json["error"]


@dataclass
class Ran:
    """What the events of a command said."""

    stdout: bytes
    stderr: bytes
    exit_code: int | None
    error: dict[str, str] | None
    events: list[tuple[str, str]] = field(default_factory=list)


class BridgeClient:
    """One sandbox of a server."""

    def __init__(self, server: Server, id: str | None = None) -> None:
        parts = urlsplit(server.url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.server = server
        self.address = (parts.hostname, parts.port)
        self.id = id or "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(26))
        self.root = f"/v1/sandbox/{self.id}"

    def send(
        self,
        method: str,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
    ) -> Reply:
        """A request with the server's key, or another."""
        key = self.server.key if key is None else key
        every = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body, every, encode_chunked=isinstance(body, Iterator))
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def call(self, method: str, route: str, body: object = None, **headers: str) -> Reply:
        """A route of this sandbox; what is no bytes goes as JSON. `Session_Id` is the header Session-Id."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.send(
            method, f"{self.root}/{route}", data, {name.replace("_", "-"): value for name, value in headers.items()}
        )

    def exec(self, *argv: str, session: str = "", **fields: object) -> Ran:
        headers = {"Session_Id": session} if session else {}
        reply = self.call("POST", "exec", {"argv": list(argv), **fields}, **headers)
        assert reply.status == 200, reply.body
        return read_events(reply.body)

    def shell(self, script: str, **fields: Any) -> Ran:
        return self.exec("sh", "-c", script, **fields)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=60)

    def delete(self) -> None:
        assert self.send("DELETE", self.root).status == 204


def read_events(body: bytes) -> Ran:
    """Events as the strictest client reads them: each one ends with a blank line, `exit` or `error` is the last."""
    assert body.endswith(b"\n\n"), body[-200:]
    ran = Ran(b"", b"", None, None)
    for block in body[:-2].decode().split("\n\n"):
        first, second = block.split("\n")
        name, data = first.removeprefix("event: "), second.removeprefix("data: ")
        assert ran.exit_code is None
        assert ran.error is None
        ran.events.append((name, data))
        match name:
            case "stdout":
                ran.stdout += base64.b64decode(data, validate=True)
            case "stderr":
                ran.stderr += base64.b64decode(data, validate=True)
            case "exit":
                ran.exit_code = json.loads(data)["exit_code"]
            case _:
                ran.error = json.loads(data)
    assert (ran.exit_code is None) != (ran.error is None)
    return ran


@contextmanager
def bridge_server(*options: str) -> Iterator[Server]:
    """A server with a state directory of its own."""
    home = Path(tempfile.mkdtemp(prefix="cove-bridge-", dir="/tmp"))
    home.chmod(0o711)
    try:
        with serving(home, "--on-stop", "destroy", *options) as server:
            yield server
    finally:
        shutil.rmtree(home)


@contextmanager
def fresh_sandbox(server: Server) -> Iterator[BridgeClient]:
    """An id that nobody has used; whatever it became is deleted at the end."""
    client = BridgeClient(server)
    try:
        yield client
    finally:
        client.delete()
