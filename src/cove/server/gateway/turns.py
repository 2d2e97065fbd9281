"""Let tenants take turns at a server: while others call too, one that asks for much begins one thing after the other.

A request is young until it is answered, or for as long as a short one takes: so whoever waits for long commands,
streams or terminals keeps nobody from beginning. While a tenant has a young one, its others wait, first come, first
served; other tenants do not wait for them. Who is alone, or has few requests open, never waits.

Only a request whose credentials were checked takes a turn: what anybody can send makes no tenant wait.

Each worker counts for itself; who calls is known to all of them by memory that they share.
"""

import asyncio
import mmap
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from hashlib import blake2s
from typing import Final

from cove.http import Answer, Handler, Request
from cove.tasks import Beginning, begun

# So many of one tenant in each worker, of which nobody is told to wait.
FEW_OPEN: Final = 8
YOUNG_SECONDS: Final = 0.05
# A creation keeps a processor busy until it is answered.
CREATION_SECONDS: Final = 2.0
# Others are there while they have called within this time; each notes that it calls more often than that.
ACTIVE_SECONDS: Final = 10.0
_NOTE_SECONDS: Final = 0.1
_CREATIONS: Final = frozenset({"/v1/sandboxes", "/sandboxes", "/v2/sandboxes"})
_SLOTS: Final = 128
_SLOT = struct.Struct("Qd")

Coming = Answer | Coroutine[object, object, Answer]
TakeTurn = Callable[[Request, Handler, str], Coming]


class Activity:
    """Memory of when tenants have last called, which workers inherit. Two that share a slot hide one another."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _SLOTS * _SLOT.size)

    def note(self, mark: int, now: float) -> None:
        """Note that a tenant calls."""
        _SLOT.pack_into(self._map, mark % _SLOTS * _SLOT.size, mark, now)

    def has_others(self, mark: int, now: float) -> bool:
        """Return whether another tenant has called a short time ago."""
        return any(at > now - ACTIVE_SECONDS and each != mark for each, at in _SLOT.iter_unpack(self._map[:]))


class _Tenant:
    """The requests of one tenant: all, the young ones with when they are so no longer, and those that wait."""

    __slots__ = ("has_others", "looked", "mark", "open", "timer", "waiting", "young")

    def __init__(self, owner: str) -> None:
        self.mark = int.from_bytes(blake2s(owner.encode(), digest_size=8).digest(), "little")
        self.open: set[Request] = set()
        self.young: dict[Request, float] = {}
        self.waiting: deque[tuple[Request, asyncio.Future[None]]] = deque()
        self.timer: asyncio.TimerHandle | None = None
        self.looked = 0.0
        self.has_others = False


class Turns:
    """The turns of one worker's event loop."""

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._tenants: dict[str, _Tenant] = {}
        self._of: dict[Request, _Tenant] = {}

    def take(self, request: Request, handler: Handler, owner: str) -> Coming:
        """Let the handler answer a request of a tenant, which has shown that, at once or when it is its turn."""
        now = time.monotonic()
        tenant = self._tenants.get(owner)
        if tenant is None:
            tenant = self._tenants[owner] = _Tenant(owner)
        self._of[request] = tenant
        tenant.open.add(request)
        if tenant.waiting or not self._may_begin(tenant, now):
            turn = asyncio.get_running_loop().create_future()
            tenant.waiting.append((request, turn))
            self._look_later(tenant)
            return self._wait(tenant, request, turn, handler)
        tenant.young[request] = now + _seconds(request)
        return handler(request)

    def answered(self, request: Request) -> None:
        """Note that an answer is over."""
        tenant = self._of.pop(request, None)
        if tenant is not None:
            tenant.open.discard(request)
            tenant.young.pop(request, None)
            if tenant.waiting:
                self._go_on(tenant)

    def _may_begin(self, tenant: _Tenant, now: float) -> bool:
        if now > tenant.looked + _NOTE_SECONDS:
            tenant.looked = now
            self._activity.note(tenant.mark, now)
            tenant.has_others = self._activity.has_others(tenant.mark, now)
        if not tenant.has_others or len(tenant.open) <= FEW_OPEN:
            return True
        for request in [request for request, until in tenant.young.items() if until <= now]:
            del tenant.young[request]
        return not tenant.young

    @begun
    async def _wait(self, tenant: _Tenant, request: Request, turn: "asyncio.Future[None]", handler: Handler) -> Answer:
        try:
            await Beginning()
            await turn
        except asyncio.CancelledError:
            with suppress(ValueError):  # its turn has just come
                tenant.waiting.remove((request, turn))
            raise
        coming = handler(request)
        return await coming if isinstance(coming, Coroutine) else coming

    def _go_on(self, tenant: _Tenant) -> None:
        """Let those begin whose turn it is."""
        now = time.monotonic()
        while tenant.waiting and self._may_begin(tenant, now):
            request, turn = tenant.waiting.popleft()
            if not turn.done():
                tenant.young[request] = now + _seconds(request)
                turn.set_result(None)
        self._look_later(tenant)

    def _look_later(self, tenant: _Tenant) -> None:
        """Come back when a request is no longer young, though nobody has said that it is answered."""
        if tenant.waiting and tenant.timer is None:
            seconds = max(min(tenant.young.values(), default=0.0) - time.monotonic(), 0.0)
            loop = asyncio.get_running_loop()
            tenant.timer = loop.call_later(min(seconds, _NOTE_SECONDS) + 0.001, self._look, tenant)

    def _look(self, tenant: _Tenant) -> None:
        tenant.timer = None
        self._go_on(tenant)


def _seconds(request: Request) -> float:
    is_creation = request.method == "POST" and request.path in _CREATIONS
    return CREATION_SECONDS if is_creation else YOUNG_SECONDS
