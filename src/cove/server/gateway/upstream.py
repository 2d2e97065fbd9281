"""Keep-alive connections to runtimes: each carries one request at a time, and knows where its response ends."""

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING

import httptools

from cove.http.endpoint import Endpoint
from cove.tasks import Tasks

if TYPE_CHECKING:
    from cove.server.gateway.relay import SocketRelay

_MOST_IDLE = 64
_MOST_IDLE_SECONDS = 30.0  # less than a runtime keeps a connection: it does not close one that is just being used


class Upstream(Endpoint):
    """One connection; `relay` is who uses it. The answer's bytes are passed on as they came."""

    def __init__(self, pool: "Upstreams", path: str) -> None:
        self.path = path
        self.relay: SocketRelay | None = None
        self.idle_since = 0.0
        self._pool = pool
        self._tells_unread = False
        self._parser = httptools.HttpResponseParser(self)
        self._is_head_only = False
        self._is_complete = False
        self._is_kept_alive = False
        self._is_broken = False
        self._is_raw = False

    def use(self, relay: "SocketRelay", *, is_head_only: bool) -> None:
        """Carry the next request."""
        self.relay = relay
        self._is_head_only = is_head_only
        self._is_complete = False

    @property
    def status(self) -> int:
        """The status of the answer that is coming."""
        return self._parser.get_status_code()

    @property
    def is_usable(self) -> bool:
        """Return whether it can carry another request."""
        return not self._is_broken and not self._is_raw and not self._transport.is_closing()

    def close(self) -> None:
        """End when everything is written."""
        self._is_broken = True
        super().close()

    def abort(self) -> None:
        """End at once: that is how a runtime learns that nobody waits."""
        self._is_broken = True
        super().abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport. Called by it, as are those below."""
        super().connection_made(transport)
        self._tells_unread = transport.get_extra_info("socket").family == socket.AF_UNIX
        self._pool.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The runtime is gone, or we have closed.

        On a unix socket a reset says that something was not read (unix(7)). On TCP it may come from anybody on the
        way, also after the request was carried out.
        """
        self._is_broken = True
        self._pool.remove(self)
        if self.relay is not None:
            was_reset = isinstance(error, ConnectionResetError | BrokenPipeError)
            self.relay.upstream_lost(is_unread=was_reset and self._tells_unread)

    def eof_received(self) -> bool:
        """A raw connection can be closed on one side."""
        if self._is_raw and self.relay is not None:
            self.relay.upstream_eof()
            return True
        return False

    def pause_writing(self) -> None:
        """The runtime does not take what is written."""
        if self.relay is not None:
            self.relay.upstream_full()

    def resume_writing(self) -> None:
        """The runtime takes more."""
        if self.relay is not None:
            self.relay.upstream_ready()

    def data_received(self, data: bytes) -> None:
        """A part of the answer, or of what follows an upgrade."""
        relay = self.relay
        if relay is None:
            self.abort()
            return
        if not self._is_raw:
            self._parse(data)
        if self._is_broken:
            relay.upstream_failed()
        elif self._is_complete:
            relay.upstream_completed(data, keep_alive=self._is_kept_alive)
        else:
            relay.upstream_data(data, is_raw=self._is_raw)

    def on_message_begin(self) -> None:
        """Reject a second response. Called by llhttp, as are those below."""
        self._is_broken = self._is_broken or self._is_complete

    def on_headers_complete(self) -> None:
        """An answer to HEAD ends with its head, which the parser cannot know."""
        if self._is_head_only and self._parser.get_status_code() >= 200:
            self._is_complete = True
            self._is_kept_alive = False

    def on_message_complete(self) -> None:
        """The answer is complete, unless it was only an interim one."""
        if self._parser.get_status_code() >= 200 and not self._is_complete:
            self._is_complete = True
            self._is_kept_alive = self._parser.should_keep_alive()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_raw = True
        except httptools.HttpParserError:
            self._is_broken = not self._is_head_only or not self._is_complete


class Upstreams:
    """All connections of a worker to runtimes; owns those under way too."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Upstream]] = {}
        self._open: set[Upstream] = set()
        self._connecting = Tasks()
        self._all_gone = asyncio.Event()

    def take(self, path: str) -> Upstream | None:
        """A kept-alive connection to this socket, if there is one: the one used last."""
        idle = self._idle.get(path)
        while idle:
            upstream = idle.pop()
            if upstream.is_usable and asyncio.get_running_loop().time() - upstream.idle_since < _MOST_IDLE_SECONDS:
                return upstream
            upstream.abort()
        return None

    def give_back(self, upstream: Upstream) -> None:
        """The answer is complete: the next request may use it."""
        upstream.relay = None
        upstream.resume_reading()
        idle = self._idle.setdefault(upstream.path, [])
        if not upstream.is_usable or len(idle) >= _MOST_IDLE:
            upstream.abort()
            return
        upstream.idle_since = asyncio.get_running_loop().time()
        idle.append(upstream)

    async def connect(self, path: str) -> Upstream:
        """A fresh connection; raises OSError. One that was closed before anything was sent is as good as refused."""
        upstream = Upstream(self, path)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: upstream, path)
        except BaseException:
            self.remove(upstream)  # uvloop closes what is cancelled after it was made without saying that it is lost
            raise
        if not upstream.is_usable:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        return upstream

    def start(self, relay: "SocketRelay") -> "asyncio.Task[None]":
        """Connect for a relay, in a task that ends before this object does."""
        return self._connecting.start(relay.connect())

    def add(self, upstream: Upstream) -> None:
        """Register an open connection."""
        self._open.add(upstream)

    def remove(self, upstream: Upstream) -> None:
        """Forget a lost connection."""
        self._open.discard(upstream)
        idle = self._idle.get(upstream.path)
        if idle is not None:
            if upstream in idle:
                idle.remove(upstream)
            if not idle:
                del self._idle[upstream.path]
        if not self._open:
            self._all_gone.set()

    async def aclose(self) -> None:
        """End every connection."""
        await self._connecting.aclose()
        for upstream in list(self._open):
            upstream.abort()
        await self._until_none_is_open()

    async def _until_none_is_open(self) -> None:
        while self._open:
            self._all_gone.clear()
            await self._all_gone.wait()
