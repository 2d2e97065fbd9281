"""Relay a request to a runtime: bytes both ways as they come, with backpressure both ways.

Theory of operation. A relay stands between a client's connection (`Exchange`) and one connection to the runtime's unix
socket (`Upstream`), for one request. Nothing here waits: what the client sends is written to the runtime in the call
that brought it, and the other way round. Only a fresh upstream connection needs a task. The request's head is written
anew, without hop-by-hop headers (RFC 9110, 7.6.1) and without the API key, which no sandbox gets to see. The response
is passed on byte by byte; llhttp reads along only to find where it ends, so that both connections can be kept alive.
After an upgrade (101) nothing is parsed any more: the two are spliced, each direction closes on its own.

Backpressure. When the client does not take more, reading from the runtime pauses; when the runtime does not take more,
reading from the client pauses. So memory is bounded by the high-water marks of two transports and the kept body below.

At most once. A request may have an effect, so it is sent again only where it provably had none. A runtime stops when it
is idle, just when a request may be on its way. The kernel tells the cases apart (unix(7)): a peer that closes a socket
with unread bytes resets it; one that has read everything ends it. Hence:

- reset, nothing answered, body small enough to be kept (64 KiB): send again, to where the runtime is found then;
- reset, body too large to be kept: 503, nothing was started, the client may retry;
- ended, nothing answered: 502 CONNECTION_LOST, the call may have had its effect;
- ended in the middle of a response: the client's connection is cut, so that it sees that the response is incomplete.

The conclusion holds for unix sockets alone; on TCP a reset may come from anybody on the way.

Cancellation. A client cancels a call by half-closing its connection. That is passed on as a half-close; when the
runtime's handler has ended, and with it what it had started, the runtime closes, then the gateway. A client that is
gone is passed on by aborting the upstream connection.

What can go wrong, and why it does not:

- Request smuggling: a client names Content-Length or Host in its Connection header, to have it removed. Those are never
  taken for hop-by-hop. Ambiguous requests do not get here: http/parser has refused them.
- Desynchronisation: a runtime that sends bytes behind its response, or a response that nobody asked for, loses its
  connection. So the next client never gets a response to another's request.
- A kept-alive connection is closed by the runtime just as it is taken: that is the case "reset, nothing answered". Idle
  ones are given up before a runtime would close them.
- A connection goes back to the pool only when the response is complete *and* the whole request was sent: a runtime may
  answer before it has read the body.
- A 101 that was not asked for is a failure. One that comes after the client has cancelled is dropped: otherwise nobody
  would ever end the raw connection.
- Both ends of a raw connection half-close and then stay silent: when both have, the relay closes it.
- A sandbox that stops again and again: after four attempts the client gets the error.
"""

import asyncio
from collections.abc import Callable, Coroutine

from cove.errors import ConnectionLost, CoveError, SandboxUnavailable
from cove.http import Exchange, Headers, HttpError, Relay, Request
from cove.http.headers import HOP_BY_HOP, hop_by_hop, render_framing
from cove.server.gateway.upstream import Upstream, Upstreams

_NOT_PASSED_ON = HOP_BY_HOP | {b"authorization", b"expect"}
_MOST_KEPT_BYTES = 64 << 10
_MOST_TRIES = 4  # a sandbox that is stopped when idle can stop again before the request is there


class SocketRelay(Relay):
    """One request on its way to the unix socket at `path`; `find_again` says where it is when nothing listens there."""

    __slots__ = (
        "_connecting",
        "_exchange",
        "_find_again",
        "_has_answered",
        "_has_client_ended",
        "_has_upstream_ended",
        "_head",
        "_headers",
        "_is_chunked",
        "_is_raw",
        "_is_sent",
        "_kept",
        "_kept_bytes",
        "_path",
        "_tries",
        "_upstream",
        "_upstreams",
    )

    _exchange: Exchange

    def __init__(
        self,
        upstreams: Upstreams,
        path: str,
        *,
        headers: Headers = (),
        find_again: Callable[[], Coroutine[object, object, str]] | None = None,
    ) -> None:
        self._upstreams = upstreams
        self._path = path
        self._headers = headers
        self._find_again = find_again
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._head = b""
        self._is_chunked = False
        self._is_sent = False
        self._kept: list[bytes] | None = []
        self._kept_bytes = 0
        self._tries = 1
        self._has_answered = False
        self._is_raw = False
        self._has_client_ended = False
        self._has_upstream_ended = False

    def begin(self, exchange: Exchange) -> None:
        """Send the request on a connection that is open, or open one."""
        self._exchange = exchange
        self._is_chunked = b"transfer-encoding" in exchange.request.headers
        upstream = self._upstreams.take(self._path)
        if upstream is None:
            self._connecting = self._upstreams.start(self)
        else:
            self._send(upstream)

    async def connect(self) -> None:
        """Open a connection and send the request; the task of `Upstreams`."""
        try:
            upstream = await self._open()
        except CoveError as error:
            self.fail(error)
        except OSError as error:
            self.fail(SandboxUnavailable(f"the sandbox's runtime cannot be reached: {error.strerror}"))
        else:
            self._send(upstream)
        finally:
            self._connecting = None

    async def _open(self) -> Upstream:
        for _ in range(_MOST_TRIES - 1):
            try:
                return await self._upstreams.connect(self._path)
            except (FileNotFoundError, ConnectionRefusedError):
                if self._find_again is None:
                    raise
                self._path = await self._find_again()
        return await self._upstreams.connect(self._path)

    def _send(self, upstream: Upstream) -> None:
        request = self._exchange.request
        self._upstream = upstream
        upstream.use(self, is_head_only=request.method == "HEAD")
        self._head = self._render(request)
        for data in self._kept or ():
            self._write_body(data)
        request.pass_body_to(self)
        if self._head:
            self._write(b"")

    def _render(self, request: Request) -> bytes:
        return render_request(request, self._headers)

    def _write(self, data: bytes) -> None:
        """A head goes together with what of the body has come: a small request is one write."""
        if self._upstream is not None:
            head, self._head = self._head, b""
            self._upstream.write(head + data if head else data)

    def body_data(self, data: bytes) -> None:
        """Pass the client's body on to the runtime."""
        self._keep(data)
        self._write_body(data)

    def _keep(self, data: bytes) -> None:
        self._kept_bytes += len(data)
        if self._kept_bytes > _MOST_KEPT_BYTES:
            self._kept = None
        elif self._kept is not None:
            self._kept.append(data)

    def _write_body(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def body_end(self) -> None:
        """End the body."""
        self._is_sent = True
        if self._is_chunked:
            self._write(b"0\r\n\r\n")

    def body_failed(self, error: HttpError) -> None:
        """Fail: the client will not send the rest."""
        self._drop_upstream()
        if self._has_answered:
            self._exchange.cut()
        else:
            self.fail(error)

    def upstream_data(self, data: bytes, *, is_raw: bool) -> None:
        """Pass on some of the response."""
        self._note(data)
        self._has_answered = True
        if is_raw and not self._is_raw:
            self._switch(data)
        else:
            self._exchange.write(data)

    def _note(self, data: bytes) -> None:
        """Note the status of the response when its first part comes."""
        if not self._has_answered and self._upstream is not None:
            self._exchange.request.answered(self._upstream.status, data)

    def upstream_completed(self, data: bytes, *, keep_alive: bool) -> None:
        """Pass on the last of the response, and give the connection back."""
        self._note(data)
        upstream, self._upstream = self._upstream, None
        assert upstream is not None
        self._exchange.write(data)
        if keep_alive and self._is_sent and not self._has_client_ended:
            self._upstreams.give_back(upstream)
        else:
            upstream.relay = None
            upstream.abort()
        self._exchange.finish(keep_alive=keep_alive or self._exchange.request.method == "HEAD")

    def upstream_failed(self) -> None:
        """Fail: what the runtime sent is no response."""
        self._drop_upstream()
        self._break_off(has_begun=True)

    def upstream_lost(self, *, is_unread: bool) -> None:
        """Retry or fail: the runtime closed, or is gone; `is_unread` when it had not read all that was sent to it."""
        self._upstream = None
        if self._has_client_ended and not self._is_raw:
            self._exchange.cut()
        elif is_unread and not self._has_answered and self._kept is not None and self._tries < _MOST_TRIES:
            self._tries += 1
            self._exchange.request.keep_body()
            self._connecting = self._upstreams.start(self)
        elif self._has_answered and self._exchange.request.version == "1.0":
            self._exchange.finish(keep_alive=False)
        else:
            self._break_off(has_begun=not is_unread)

    def upstream_eof(self) -> None:
        """Half-close towards the client after an upgrade: the runtime sends nothing more."""
        self._has_upstream_ended = True
        self._exchange.write_eof()
        self._end_if_both_have()

    def upstream_full(self) -> None:
        """Pause the client (backpressure): the runtime does not take more."""
        if self._is_raw:
            self._exchange.pause_reading()
        else:
            self._exchange.request.pause()

    def upstream_ready(self) -> None:
        """Resume the client: the runtime takes more."""
        if self._is_raw:
            self._exchange.resume_reading()
        else:
            self._exchange.request.resume()

    def client_full(self) -> None:
        """Pause the runtime (backpressure): the client does not take more."""
        if self._upstream is not None:
            self._upstream.pause_reading()

    def client_ready(self) -> None:
        """Resume the runtime: the client takes more."""
        if self._upstream is not None:
            self._upstream.resume_reading()

    def client_gone(self) -> None:
        """Abort the upstream connection: that is how the runtime learns it."""
        self._drop_upstream()
        if self._connecting is not None:
            self._connecting.cancel()

    def client_cancelled(self) -> None:
        """Pass the half-close on to the runtime, which says in the same way that it has ended the call."""
        self._has_client_ended = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.write_eof()
        else:
            self._exchange.cut()

    def client_data(self, data: bytes) -> None:
        """Pass on to the runtime what the client sent after an upgrade."""
        if self._upstream is not None:
            self._upstream.write(data)

    def client_eof(self) -> None:
        """Half-close towards the runtime after an upgrade: the client sends nothing more."""
        self._has_client_ended = True
        if self._upstream is not None:
            self._upstream.write_eof()
        self._end_if_both_have()

    def _end_if_both_have(self) -> None:
        """Two ends that have both said so may never say anything else."""
        if self._has_client_ended and self._has_upstream_ended and self._upstream is not None:
            self._upstream.relay = None
            self._upstream.close()
            self._upstream = None
            self._exchange.cut()

    def _switch(self, data: bytes) -> None:
        if not self._exchange.request.is_upgrade:
            self.upstream_failed()
            return
        if self._has_client_ended:  # it has cancelled, and would never end the raw connection
            self._drop_upstream()
            self._exchange.cut()
            return
        self._is_raw = True
        self._exchange.write(data)
        self._exchange.switch()

    def fail(self, error: CoveError | HttpError) -> None:
        """Answer with this error; nothing of a response was passed on."""
        self._exchange.fail(error)

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.relay = None
            self._upstream.abort()
            self._upstream = None

    def _break_off(self, *, has_begun: bool) -> None:
        if self._has_answered:
            self._exchange.cut()
        elif has_begun:
            self.fail(
                ConnectionLost("the sandbox's runtime ended before it answered: the call may have had its effect")
            )
        else:
            self.fail(SandboxUnavailable("the sandbox's runtime ended before it read the request: nothing was started"))


def render_request(request: Request, added: Headers, not_passed_on: frozenset[bytes] = _NOT_PASSED_ON) -> bytes:
    """Return the head as it came, without what concerns only the client's own connection."""
    target = f"{request.path}?{request.query}" if request.query else request.path
    parts = [f"{request.method} {target} HTTP/{request.version}\r\n".encode()]
    dropped = hop_by_hop(request.headers.get(b"connection"), not_passed_on)
    parts += [b"%b: %b\r\n" % header for header in request.raw_headers if header[0] not in dropped]
    parts += [b"%b: %b\r\n" % header for header in added]
    upgrade = request.headers[b"upgrade"] if request.is_upgrade else None
    parts.append(render_framing(upgrade, is_chunked=b"transfer-encoding" in request.headers))
    parts.append(b"\r\n")
    return b"".join(parts)
