"""Pull from a registry: the distribution protocol, v2, with token authentication. Calls block; they run in threads.

What a registry says is untrusted: documents and headers are bounded, in time too, everything is verified by its digest,
redirects are few, and credentials go to the registry and to the token server that it names over TLS, nowhere else.
A blob that was interrupted is resumed where it ended.
"""

import hashlib
import http.client
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from cove.errors import ImageInvalid, ImageNotFound, PermissionDenied, Unauthorized, Unreachable
from cove.images.credentials import Credentials
from cove.images.manifest import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    MOST_JSON_BYTES,
    Descriptor,
    Index,
    Manifest,
    choose,
    decode,
    digest_of,
    machine_architecture,
)
from cove.images.reference import Reference

SECONDS = 30.0
# For the head of an answer and for a document, however many pieces they come in.
ANSWER_SECONDS = 60.0
LEAST_BYTES = 32 << 10
MOST_REDIRECTS = 5
MOST_TRIES = 5
CHUNK = 1 << 18
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
_PLAIN_HOSTS = ("localhost", "127.0.0.1", "[::1]")

Progress = Callable[[str, int, int], None]
Connect = Callable[[str, int, float], socket.socket]


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of a response, and the connection its body is read from, which `limit` breaks off.

    `origin` is the scheme, the host and the port that sent it.
    """

    origin: tuple[str, str, int]
    status: int
    headers: http.client.HTTPMessage
    body: http.client.HTTPResponse
    connection: http.client.HTTPConnection
    limit: threading.Timer

    def read(self, size: int) -> bytes:
        """Read the body, at most so many bytes. Raises OSError or HTTPException."""
        with _framed():
            return self.body.read(size)

    def read1(self, size: int) -> bytes:
        """Read what there is of the body, at most so many bytes. Raises OSError or HTTPException."""
        with _framed():
            return self.body.read1(size)

    def close(self) -> None:
        """Read no more of it."""
        self.limit.cancel()
        self.connection.close()


@contextmanager
def _framed() -> Iterator[None]:
    """Raise HTTPException where http.client takes a chunk of less than nothing for one."""
    try:
        yield
    except OSError:
        raise
    except ValueError as error:
        raise http.client.HTTPException(f"the body is not framed: {error}") from None


class Registry:
    """One registry, for one repository. `connect` makes all connections: it may refuse some, by PermissionDenied."""

    def __init__(
        self, reference: Reference, credentials: Credentials | None, *, connect: Connect | None = None
    ) -> None:
        self._reference = reference
        self._credentials = credentials
        self._connect = connect or _connect
        self._authorization: str | None = None
        self._base = f"{'http' if _is_local(reference.host) else 'https'}://{reference.host}/v2/{reference.name}"
        self._origin = _origin(urllib.parse.urlsplit(self._base))

    def manifest(self) -> Manifest:
        """Fetch the manifest for this machine."""
        name = self._reference.digest or self._reference.tag
        expected = self._reference.digest
        media_types: tuple[str, ...] = (*MANIFEST_TYPES, *INDEX_TYPES)
        for _ in range(2):
            data, kind = self._document(f"{self._base}/manifests/{name}", media_types)
            if expected is not None and digest_of(data) != expected:
                raise ImageInvalid(f"{self._reference.host} sent another manifest than {expected}")
            if kind not in INDEX_TYPES and b'"manifests"' not in data:
                return decode(data, Manifest, "manifest")
            name = expected = choose(decode(data, Index, "index").manifests, machine_architecture()).digest
            media_types = MANIFEST_TYPES
        raise ImageInvalid(f"the index of {self._reference} leads to another index")

    def document(self, descriptor: Descriptor) -> bytes:
        """Fetch a small blob, verified."""
        data, _ = self._document(f"{self._base}/blobs/{descriptor.digest}", ("*/*",))
        if digest_of(data) != descriptor.digest:
            raise ImageInvalid(f"{self._reference.host} sent other bytes than {descriptor.digest}")
        return data

    def fetch(self, descriptor: Descriptor, target: Path, progress: Progress) -> None:
        """Fetch a blob into a file, verified; what an earlier try left there is gone on from."""
        for attempt in range(MOST_TRIES):
            try:
                self._fetch_rest(descriptor, target, progress)
            except (OSError, http.client.HTTPException) as error:
                if attempt + 1 == MOST_TRIES:
                    raise Unreachable(f"{self._reference.host} broke off {MOST_TRIES} times: {error}") from error
                time.sleep(min(0.2 * 2**attempt, 5))
            else:
                return

    def _fetch_rest(self, descriptor: Descriptor, target: Path, progress: Progress) -> None:
        with open(target, "ab+") as file:
            partial = _Partial(file)
            if partial.size < descriptor.size:
                self._append(descriptor, partial, progress)
            if partial.digest != descriptor.digest:
                partial.restart()
                raise ImageInvalid(f"{self._reference.host} sent other bytes than {descriptor.digest}")

    def _append(self, descriptor: Descriptor, partial: "_Partial", progress: Progress) -> None:
        headers = {"Range": f"bytes={partial.size}-"} if partial.size else {}
        answer = self._get(f"{self._base}/blobs/{descriptor.digest}", ("*/*",), headers)
        try:
            if answer.status != http.client.PARTIAL_CONTENT:
                partial.restart()
            answer.limit.cancel()
            pace = _Pace()
            while data := answer.read1(min(CHUNK, descriptor.size - partial.size)):
                partial.append(data)
                pace.check(len(data))
                progress(descriptor.digest, partial.size, descriptor.size)
        finally:
            answer.close()
        if partial.size < descriptor.size:
            raise http.client.IncompleteRead(b"", descriptor.size - partial.size)

    def _document(self, url: str, media_types: tuple[str, ...]) -> tuple[bytes, str]:
        try:
            answer = self._get(url, media_types, {})
            try:
                data = answer.read(MOST_JSON_BYTES + 1)
            finally:
                answer.close()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the registry {self._reference.host} cannot be reached: {error}") from error
        return data, answer.headers.get_content_type()

    def _get(self, url: str, media_types: tuple[str, ...], headers: Mapping[str, str]) -> Answer:
        """Ask once, and once more with what the registry wants to see; follow redirects."""
        try:
            return self._ask(url, media_types, headers)
        except OSError:  # of which a certificate that is refused is one, and a ValueError too
            raise
        except ValueError as error:
            raise ImageInvalid(f"{self._reference.host} leads to an impossible address: {error}") from None

    def _ask(self, url: str, media_types: tuple[str, ...], headers: Mapping[str, str]) -> Answer:
        asked = {"Accept": ", ".join(media_types), **headers}
        for _ in range(2):
            answer = self._follow(url, asked)
            if answer.status != http.client.UNAUTHORIZED:
                return self._checked(answer)
            answer.close()
            if answer.origin != self._origin:
                raise PermissionDenied(f"{self._reference.host} leads to {answer.origin[1]}, which wants credentials")
            self._authorization = self._authorize(answer.headers.get("WWW-Authenticate", ""))
        raise self._refused()

    def _follow(self, url: str, headers: Mapping[str, str]) -> Answer:
        first = urllib.parse.urlsplit(url).netloc
        for _ in range(MOST_REDIRECTS):
            parsed = urllib.parse.urlsplit(url)
            is_own = _origin(parsed) == self._origin
            mine = {"Authorization": self._authorization} if self._authorization and is_own else {}
            answer = self._send(parsed, {**headers, **mine})
            if answer.status not in (301, 302, 303, 307, 308):
                return answer
            answer.close()
            url = urllib.parse.urljoin(url, answer.headers.get("Location", ""))
            if urllib.parse.urlsplit(url).scheme != "https" and parsed.scheme == "https":
                raise ImageInvalid(f"{first} leads from TLS to a plain connection")
        raise ImageInvalid(f"{first} leads from one address to the next")

    def _send(self, url: urllib.parse.SplitResult, headers: Mapping[str, str]) -> Answer:
        origin = scheme, host, port = _origin(url)
        connection = _Connection(host, port, timeout=SECONDS)
        connection.sock = opened = self._open(host, port, is_tls=scheme == "https")
        limit = threading.Timer(ANSWER_SECONDS, _break_off, [opened])
        limit.daemon = True
        limit.start()
        try:
            if isinstance(opened, ssl.SSLSocket):
                opened.do_handshake()
            connection.request(
                "GET", urllib.parse.urlunsplit(("", "", url.path, url.query, "")) or "/", headers=headers
            )
            response = connection.getresponse()
        except BaseException:
            limit.cancel()
            connection.close()
            raise
        return Answer(origin, response.status, response.headers, response, connection, limit)

    def _open(self, host: str, port: int, *, is_tls: bool) -> socket.socket:
        opened = self._connect(host, port, SECONDS)
        if not is_tls:
            return opened
        try:
            context = ssl.create_default_context()
            return context.wrap_socket(opened, server_hostname=host, do_handshake_on_connect=False)
        except BaseException:
            opened.close()
            raise

    def _checked(self, answer: Answer) -> Answer:
        if answer.status in (200, 206):
            return answer
        answer.close()
        match answer.status:
            case 403:
                raise self._refused()
            case 404:
                raise ImageNotFound(f"{self._reference} is not at {self._reference.host}")
            case 429 | 500 | 502 | 503 | 504:
                raise Unreachable(f"the registry {self._reference.host} answered {answer.status}: try again")
        raise ImageInvalid(f"the registry {self._reference.host} answered {answer.status}")

    def _authorize(self, challenge: str) -> str:
        """Get what the registry wants to see: a token of the server it names, or the credentials themselves."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and self._credentials is not None:
            return self._credentials.basic
        facts = dict(_CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in facts:
            raise self._refused()
        realm = urllib.parse.urlsplit(facts["realm"])
        base = urllib.parse.urlsplit(self._base)
        if realm.scheme != "https" and (base.scheme == "https" or realm.hostname != base.hostname):
            raise PermissionDenied(f"{self._reference.host} wants a token of {realm.netloc} without TLS")
        query = urllib.parse.urlencode({key: facts[key] for key in ("service", "scope") if key in facts})
        shown = {"Authorization": self._credentials.basic} if self._credentials else {}
        answer = self._send(realm._replace(query="&".join(filter(None, (realm.query, query)))), shown)
        try:
            data = answer.read(MOST_JSON_BYTES)
        finally:
            answer.close()
        if answer.status != http.client.OK:
            raise self._refused()
        token = decode(data, _Token, "token")
        return f"Bearer {token.token or token.access_token}"

    def _refused(self) -> Unauthorized:
        known = "with the credentials that were found" if self._credentials else "without credentials"
        return Unauthorized(
            f"{self._reference.host} does not give {self._reference} {known}: `docker login {self._reference.host}`, "
            "or put them into ~/.docker/config.json"
        )


def _origin(url: urllib.parse.SplitResult) -> tuple[str, str, int]:
    """Return scheme, host and port of an address; ValueError for an impossible one."""
    return url.scheme, url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


class _Connection(http.client.HTTPConnection):
    """A connection that was made before; it is never made again."""

    auto_open = 0


def _break_off(sock: socket.socket) -> None:
    """End whatever another thread waits for at this socket, also below TLS."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Pace:
    """Bounds how slowly a blob may come: every so many seconds there is a least number of bytes."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SECONDS
        self._bytes = 0

    def check(self, size: int) -> None:
        """Count what came. Raises TimeoutError when that was too little for too long."""
        self._bytes += size
        if time.monotonic() > self._until:
            if self._bytes < LEAST_BYTES:
                raise TimeoutError(f"fewer than {LEAST_BYTES} bytes in {SECONDS:g} seconds")
            self._until, self._bytes = time.monotonic() + SECONDS, 0


def _connect(host: str, port: int, seconds: float) -> socket.socket:
    return socket.create_connection((host, port), seconds)


class _Partial:
    """A blob as far as it has come, and the hash of that."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0
        file.seek(0)
        while data := file.read(CHUNK):
            self._hash.update(data)
            self.size += len(data)

    @property
    def digest(self) -> str:
        """The digest of all that has come."""
        return f"sha256:{self._hash.hexdigest()}"

    def append(self, data: bytes) -> None:
        """Write what came next."""
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def restart(self) -> None:
        """Forget all of it."""
        self._file.truncate(0)
        self._hash = hashlib.sha256()
        self.size = 0


def _is_local(host: str) -> bool:
    """Return whether a registry is on this machine, where it need not speak TLS."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name in _PLAIN_HOSTS
