"""A client of E2B's protocol that sends exactly what a test says."""

import base64
import http.client
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from support.servers import Server

ENVD, CODE = 49983, 49999


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str]:
        """The status, which the body says too, and the message."""
        assert self.json["code"] == self.status
        return self.status, self.json["message"]

    @property
    def messages(self) -> list[Any]:
        """The messages of a stream; the last one is there, and is the last."""
        assert self.headers["content-type"] == "application/connect+json"
        found = list(read_envelopes(self.body))
        assert [flags for flags, _ in found] == [0] * (len(found) - 1) + [2], self.body
        return [message for _, message in found]

    @property
    def failure(self) -> str:
        """The code of a stream that failed at once."""
        (last,) = self.messages
        return str(last["error"]["code"])


def envelope(message: object, flags: int = 0) -> bytes:
    data = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def read_envelopes(data: bytes) -> Iterator[tuple[int, Any]]:
    while data:
        flags, length = struct.unpack_from(">BI", data)
        yield flags, json.loads(data[5 : 5 + length])
        data = data[5 + length :]


def start(line: str, **fields: object) -> bytes:
    process = {"cmd": "/bin/bash", "args": ["-l", "-c", line]}
    return envelope({"process": process, "stdin": False, **fields})


class E2bClient:
    """The control API of a server."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.server = server
        self.address = (parts.hostname, parts.port)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body, {**(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """A request with the server's key; names of headers are written with underscores."""
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send(method, path, data, {"X-API-KEY": self.server.key, **named})

    @contextmanager
    def native(self, id: str) -> Iterator[None]:
        """A sandbox that the native API makes."""
        bearer = {"Authorization": f"Bearer {self.server.key}"}
        assert self.send("POST", "/v1/sandboxes", json.dumps({"id": id}).encode(), bearer).status == 201
        try:
            yield
        finally:
            self.send("DELETE", f"/v1/sandboxes/{id}", headers=bearer)

    @contextmanager
    def sandbox(self, **fields: object) -> Iterator["Inside"]:
        made = self.call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 300, **fields})
        assert made.status == 201, made.body
        try:
            yield Inside(self, made.json)
        finally:
            self.call("DELETE", f"/sandboxes/{made.json['sandboxID']}")


@dataclass
class Inside:
    """One sandbox, as the answer to `create` describes it."""

    client: E2bClient
    made: dict[str, str]

    @property
    def id(self) -> str:
        return self.made["sandboxID"]

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        port: int = ENVD,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        shown = self.made["envdAccessToken"] if token is None else token
        every = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port)}
        if shown:
            every["X-Access-Token"] = shown
        return self.client.send(method, path, body, {**every, **(headers or {})})

    def unary(self, name: str, message: object) -> Reply:
        return self.send("POST", f"/{name}", json.dumps(message).encode(), headers={"Content-Type": "application/json"})

    def stream(self, name: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        every = {"Content-Type": "application/connect+json", **(headers or {})}
        return self.send("POST", f"/{name}", body, headers=every)

    def run(self, line: str, headers: Mapping[str, str] | None = None) -> tuple[bytes, Any]:
        """The output of a command, and how it ended."""
        first, *events, end, last = self.stream("process.Process/Start", start(line), headers).messages
        assert set(first["event"]) == {"start"}
        assert last == {}
        output = b"".join(base64.b64decode(event["event"]["data"]["stdout"]) for event in events)
        return output, end["event"]["end"]
