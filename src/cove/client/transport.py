"""Calls to a server: one HTTP connection pool per event loop, errors as the classes they were there.

A connection that breaks before the answer is there raises ConnectionLost: the call may have run. What can be
repeated without harm (reading, waiting) is, until the server is back or patience ends: a restarted gateway is no
event for its clients.
"""

import asyncio
import atexit
import errno
import io
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Final
from weakref import WeakSet

import aiohttp
from yarl import URL

from cove.client.patience import patiently
from cove.client.raw_connection import open_raw
from cove.errors import ConnectionLost, CoveError, Internal, Unreachable, ValidationFailed
from cove.linux.tcp_stream import Streams
from cove.wire.coding import check_types, encode_json, encode_query, quote_segment
from cove.wire.errors import decode_error
from cove.wire.frames import EVENT, FAILURE, FRAMES, MOST_FRAME_BYTES, FrameReader, decode_failure, decoder_for
from cove.wire.operations import AnyOperation
from cove.wire.requests import Request

_Body = io.BytesIO | bytes | AsyncIterable[bytes] | None

_CONNECT_SECONDS: Final = 10.0
_END_SECONDS: Final = 2.0
_READ_BYTES: Final = 256 << 10
_MOST_REPLY_BYTES: Final = 1 << 30
_MOST_ERROR_BYTES: Final = 16 << 20
_JSON: Final = {"Content-Type": "application/json"}
_CONTENT: Final = {"Content-Type": "application/octet-stream"}
_FRAMES: Final = {"Accept": FRAMES}
_NO_HEADERS: Final[dict[str, str]] = {}
_UNIX: Final = "unix://"
# Among them what is no address.
_TRANSLATED: Final = (aiohttp.ClientError, ConnectionResetError)


class Transport:
    """One server as seen from one event loop. Holders `acquire` and `release` it; the last one closes the pool."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        self._socket_path = self.url.removeprefix(_UNIX) if self.url.startswith(_UNIX) else None
        self._root = "http://cove.localhost" if self._socket_path is not None else self.url
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._session: aiohttp.ClientSession | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._holders = 0
        self._calls = 0

    def acquire(self) -> None:
        """One more holder."""
        self._holders += 1

    async def release(self) -> None:
        """One holder less."""
        self._holders -= 1
        await self._close_unused()

    async def call(self, operation: AnyOperation, path: str, request: Request | None = None) -> bytes:
        """The body of the answer."""
        if operation.repeatable:
            return await patiently(lambda: self._call(operation, path, request))
        return await self._call(operation, path, request)

    async def _call(self, operation: AnyOperation, path: str, request: Request | None) -> bytes:
        async with self._open(operation, path, request) as response:
            return await _read(response, _MOST_REPLY_BYTES)

    async def upload(
        self, operation: AnyOperation, path: str, request: Request | None, content: bytes | AsyncIterable[bytes]
    ) -> bytes:
        """Send bytes; the body of the answer. What the source of the bytes raises is raised here."""
        if isinstance(content, bytes):
            async with self._open(operation, path, request, content) as response:
                return await _read(response, _MOST_REPLY_BYTES)
        source = _Source(content)
        try:
            async with self._open(operation, path, request, source.chunks()) as response:
                return await _read(response, _MOST_REPLY_BYTES)
        except ConnectionLost:
            if source.failure is not None:
                raise source.failure from None
            raise
        finally:
            await source.close()

    async def content(self, operation: AnyOperation, path: str, request: Request | None) -> AsyncGenerator[bytes, None]:
        """Bytes as they come."""
        async with self._open(operation, path, request) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    async def events(self, operation: AnyOperation, path: str, request: Request | None) -> AsyncGenerator[object, None]:
        """Events as they come. One that says the stream cannot go on is raised."""
        decode = decoder_for(operation.reply)
        reader = FrameReader()
        async with self._open(operation, path, request, headers=_FRAMES) as response:
            async for chunk in response.content.iter_any():
                for kind, head, data in reader.feed(chunk):
                    if kind == EVENT:
                        yield decode(head, data)
                    elif kind == FAILURE:
                        raise decode_failure(head)

    @asynccontextmanager
    async def socket(self, path: str, request: Request) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket."""
        check_types(request)
        async with self._in_use() as session, _without_redirects(session, self._headers) as direct:
            try:
                opened = direct.ws_connect(
                    self._url(path, request), autoping=True, max_msg_size=MOST_FRAME_BYTES, compress=0
                )
                async with opened as websocket:
                    yield websocket
            except aiohttp.WSServerHandshakeError as error:
                raise await self._explain(path, error) from None

    async def raw(self, path: str) -> Streams:
        """A connection that is raw after an upgrade; whoever asked closes it."""
        try:
            return await open_raw(self._url(path, None), self._socket_path, self._headers.get("Authorization"))
        except OSError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"no Cove server answers at {self.url}: {_reason(error)}. Is `cove serve` running?")

    async def _explain(self, path: str, error: aiohttp.WSServerHandshakeError) -> Exception:
        """The handshake's error has no body: ask again without an upgrade for what is wrong."""
        plain = self._url(path, None)
        async with self._in_use() as session, session.get(plain, allow_redirects=False) as response:
            body = await _read(response, _MOST_ERROR_BYTES)
            return decode_error(body, response.status) if response.status != error.status or body else error

    def _open(
        self,
        operation: AnyOperation,
        path: str,
        request: Request | None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> "_Exchange":
        """An answer that is no error."""
        if request is not None:
            check_types(request)
        has_query = operation.has_query
        body, kind = (content, _CONTENT) if operation.takes_content else (None, _NO_HEADERS)
        if request is not None and not has_query:
            body, kind = encode_json(request), _JSON
        url = self._url(path, request if has_query else None)
        return _Exchange(self, operation.verb, url, _in_pieces(body), {**kind, **headers} if headers else kind)

    def _url(self, path: str, request: Request | None) -> URL:
        query = "" if request is None else encode_query(request)
        return URL(f"{self._root}{path}?{query}" if query else f"{self._root}{path}", encoded=True)

    @asynccontextmanager
    async def _in_use(self) -> AsyncIterator[aiohttp.ClientSession]:
        session = self.begin()
        try:
            yield session
        except _TRANSLATED as error:
            raise self.translate(error) from None
        finally:
            await self.end()

    def begin(self) -> aiohttp.ClientSession:
        """One more call; the pool is there until its `end`."""
        if self._session is None:
            self._session = self._make_session()
            self._keeping = asyncio.create_task(_keep(self._session))
        self._calls += 1
        return self._session

    async def end(self) -> None:
        """One call less."""
        self._calls -= 1
        await self._close_unused()

    def translate(self, error: Exception) -> CoveError:
        """What a failure of the connection means to the caller."""
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return self._unreachable(error)
        if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
            example = "write it as http://127.0.0.1:8787"
            return ValidationFailed(f"{self.url} is not the address of a server: {example}")
        return ConnectionLost(f"the connection to {self.url} broke: {_reason(error)}")

    def _make_session(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._socket_path is not None:
            connector = aiohttp.UnixConnector(self._socket_path, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30, socket_factory=_make_socket)
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            read_bufsize=_READ_BYTES,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def _close_unused(self) -> None:
        if self._holders <= 0 and not self._calls and self._session is not None and self._keeping is not None:
            session, self._session = self._session, None
            await _end(self._keeping)
            await session.close()  # a task that is cancelled before it began has closed nothing


class _Exchange:
    """One request and its answer, as a context: no generator, for every call goes this way."""

    __slots__ = ("_body", "_headers", "_response", "_transport", "_url", "_verb")

    _response: aiohttp.ClientResponse

    def __init__(self, transport: Transport, verb: str, url: URL, body: _Body, headers: dict[str, str]) -> None:
        self._transport = transport
        self._verb = verb
        self._url = url
        self._body = body
        self._headers = headers

    async def __aenter__(self) -> aiohttp.ClientResponse:
        session = self._transport.begin()
        try:
            self._response = response = await session.request(
                self._verb, self._url, data=self._body, headers=self._headers, allow_redirects=False
            )
            if response.status >= 300:
                async with response:
                    raise decode_error(await _read(response, _MOST_ERROR_BYTES), response.status)
        except _TRANSLATED as error:
            await self._transport.end()
            raise self._transport.translate(error) from None
        except BaseException:
            await self._transport.end()
            raise
        return response

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._response.release()
            await self._response.wait_for_close()
        except _TRANSLATED as late:
            error = late
        finally:
            await self._transport.end()
        if isinstance(error, _TRANSLATED):
            raise self._transport.translate(error) from None


def _reason(error: Exception) -> str:
    """What has happened, in the kernel's words where it was the kernel that said so."""
    cause: BaseException = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    while isinstance(cause, OSError) and not cause.errno and cause.__cause__ is not None:
        cause = cause.__cause__
    code = cause.errno or 0 if isinstance(cause, OSError) else 0
    if isinstance(cause, ConnectionResetError | BrokenPipeError):
        code = code or errno.ECONNRESET
    return os.strerror(code) if code in errno.errorcode else str(cause) or type(cause).__name__


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body; one that is larger than anything a server of ours says is not waited for."""
    if response.content_length is not None and response.content_length <= most:
        return await response.read()
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > most:
            raise Internal(f"the server's answer is larger than {most} bytes")
    return b"".join(parts)


def _without_redirects(session: aiohttp.ClientSession, headers: dict[str, str]) -> aiohttp.ClientSession:
    """For WebSockets, which follow redirects otherwise, on the same connections.

    No call leads to another server, whose business neither the key nor what is sent would be.
    """

    async def refuse(_: object, __: object, call: aiohttp.TraceRequestRedirectParams) -> None:
        raise Internal(f"the server sends {call.url} elsewhere, where no Cove server sends anybody")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return aiohttp.ClientSession(
        connector=session.connector,
        connector_owner=False,
        headers=headers,
        timeout=session.timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[config],
    )


_kept: "WeakSet[asyncio.Task[None]]" = WeakSet()


async def _keep(session: aiohttp.ClientSession) -> None:
    """Until the last holder lets go, or the event loop ends: a program need not let go of what it connects to."""
    task = asyncio.current_task()
    assert task is not None
    _kept.add(task)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await session.close()


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def _let_go() -> None:
    """The program ends while loops run on in other threads: a blocking program's does."""
    for task in list(_kept):
        loop = task.get_loop()
        if loop.is_running() and not task.done():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_end(task), loop).result(timeout=_END_SECONDS)


atexit.register(_let_go)


class _Source:
    """Bytes from the caller, taken by the task that writes the request; remembers why they ended early."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = content
        self._writer: asyncio.Task[object] | None = None
        self.failure: Exception | None = None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        self._writer = asyncio.current_task()
        try:
            async for chunk in self._content:
                yield chunk
        except Exception as error:
            self.failure = error
            raise

    async def close(self) -> None:
        """The request is over: nobody takes any more."""
        if self._writer is not None and self._writer is not asyncio.current_task():
            self._writer.cancel()
            await asyncio.wait([self._writer])


def fill(operation: AnyOperation, *values: str) -> str:
    """The operation's path with these ids."""
    parts = _parts(operation.path)
    filled = [parts[0]]
    for value, part in zip(values, parts[1:], strict=True):
        filled += (quote_segment(value), part)
    return "".join(filled)


def _in_pieces(body: bytes | AsyncIterable[bytes] | None) -> _Body:
    """A large body is written in pieces, between which other calls have their turn."""
    return io.BytesIO(body) if isinstance(body, bytes) and len(body) > _READ_BYTES else body


@lru_cache(maxsize=256)
def _parts(path: str) -> tuple[str, ...]:
    parts = [""]
    for segment in path.split("/")[1:]:
        if segment.startswith("{"):
            parts[-1] += "/"
            parts.append("")
        else:
            parts[-1] += f"/{segment}"
    return tuple(parts)


def _make_socket(address: tuple[object, ...]) -> socket.socket:
    """A socket that notices within a minute that its server's machine is gone."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)  # type: ignore[arg-type]  # as getaddrinfo gives them
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4)):
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
