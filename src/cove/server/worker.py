"""A gateway worker: a process that serves the API and the previews on sockets that it was given."""

import asyncio
import os
import resource
import signal
import socket
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import uvloop

from cove.http import Handler, HttpLimits, HttpServer, Observer
from cove.linux.cgroup import find_hierarchies
from cove.linux.descriptors import raise_descriptor_limit
from cove.local.threads import in_thread
from cove.server.actor import with_actor
from cove.server.cluster.peer import load_peer_key
from cove.server.cluster.router import Router
from cove.server.configuration import Configuration
from cove.server.console.gate import ConsoleGate
from cove.server.console.sessions import Sessions
from cove.server.counters import Counters
from cove.server.error_response import describe_error
from cove.server.gateway.auth import Authenticator, load_token_secret, share_token_secret
from cove.server.gateway.documents import make_documents
from cove.server.gateway.key_ring import KeyRing
from cove.server.gateway.observer import RequestCounter
from cove.server.gateway.refusals import Refusals
from cove.server.gateway.turns import Activity, Turns
from cove.server.preview.exposures import address_of
from cove.server.preview.handler import Preview
from cove.server.sandboxes.cpu_shares import enter_workers
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.starter import Starter
from cove.server.tenants import TenantGateways
from cove.server.tracing import start_tracing, with_server_span
from cove.tasks import Tasks, together

_REVOKED_SECONDS = 0.2
_EXPIRED_ROUNDS = 5
_LAST_SPANS_SECONDS = 2.0
_ROUNDS = 256  # the loop accepts one connection in each


@dataclass(frozen=True, slots=True)
class Work:
    """The settings that all workers share; each adds one to the `ready` counter when it serves: eventfd(2)."""

    home: Path
    configuration: Configuration
    key: str | None
    api: socket.socket
    previews: socket.socket
    ready: int
    activity: Activity


def run_worker(work: Work, number: int) -> None:
    """Serve until told to stop. Returns when the answers under way are given.

    The next worker of the same number counts on where this one ends.
    """
    raise_descriptor_limit()
    enter_workers(find_hierarchies())
    with closing(Counters(work.home, f"worker-{number}")) as counters:
        counters.read()
        stop_tracing = start_tracing("gateway")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(work, counters, is_traced=stop_tracing is not None))
        if stop_tracing is not None:
            stop_tracing(_LAST_SPANS_SECONDS)


def limits_for(descriptors: int) -> HttpLimits:
    """Derive connection limits from the descriptor limit: the API takes two, previews three, and a rest is left."""
    usual = HttpLimits()
    return replace(usual, connections=min(usual.connections, descriptors // 6))


async def _serve(work: Work, counters: Counters, *, is_traced: bool) -> None:
    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)
    configuration = work.configuration
    ring = KeyRing(work.home)
    sessions = Sessions(work.home, work.key, ring)
    authenticator = Authenticator(
        work.key,
        is_loopback=configuration.is_loopback,
        names=configuration.hosts,
        origins=configuration.origins,
        ring=ring,
        sessions=sessions.find,
    )
    limits = limits_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    starter = Starter(work.home, configuration)
    directory = Directory(work.home)
    address = address_of(configuration, work.previews.getsockname()[1])
    router = await _make_router(work, directory, starter, authenticator)
    secret = await in_thread(load_token_secret, work.home)
    refusals = Refusals(work.home, configuration.log_format)
    turns = Turns(work.activity)
    counter = RequestCounter(counters, refusals.note, on_answered=turns.answered)
    preview_counter = RequestCounter(counters, refusals.note, "previews")
    if router is not None:
        ring.check_current = router.keys.check_current
    traced = _with_span_and_actor if is_traced else with_actor
    async with (
        nullcontext() if router is None else router,
        TenantGateways(
            authenticator,
            starter,
            configuration,
            make_documents(),
            secret=secret,
            key=work.key,
            turns=turns,
            elsewhere=None if router is None else router.ask_others,
        ) as gateways,
        Preview(directory, address, work.key) as preview,
        ConsoleGate(directory, authenticator, sessions, address) as gate,
        _serve_on(work.api, traced(gate.before(_api_handler(router, gateways, preview))), limits, counter) as api,
        _serve_on(work.previews, preview if router is None else router.visit, limits, preview_counter) as previews,
        Tasks() as tasks,
    ):
        tasks.start(_end_revoked(api, gateways, ring))
        tasks.start(refusals.run())
        os.eventfd_write(work.ready, 1)
        await told_to_stop.wait()
        await _stop(api, previews)
        await in_thread(partial(refusals.announce, is_last=True))


async def _make_router(
    work: Work, directory: Directory, starter: Starter, authenticator: Authenticator
) -> Router | None:
    """Return what routes between the nodes of a cluster; None without one."""
    if work.configuration.cluster is None:
        return None
    peer_key = await in_thread(load_peer_key, work.configuration.cluster.peer_key_file)
    await in_thread(share_token_secret, work.home, peer_key.derive("tokens of sandboxes"))
    return Router(directory, starter, authenticator, peer_key, work.configuration.cluster)


def _api_handler(router: Router | None, handler: Handler, preview: Preview) -> Handler:
    return handler if router is None else router.before(handler, preview)


def _with_span_and_actor(handler: Handler) -> Handler:
    return with_server_span(with_actor(handler))


def _serve_on(listener: socket.socket, handler: Handler, limits: HttpLimits, observer: Observer) -> HttpServer:
    return HttpServer(handler, [listener], describe=describe_error, limits=limits, observer=observer)


async def _end_revoked(server: HttpServer, gateways: TenantGateways, ring: KeyRing | None) -> None:
    """End the answers under way to those whose key or session is over: streams would go on for ever.

    All of them are looked at when a key has changed, and otherwise now and then, for those whose time is over.
    """
    seen = 0
    for number in count():
        await asyncio.sleep(_REVOKED_SECONDS)
        stamp = 0 if ring is None else ring.stamp
        if stamp != seen or number % _EXPIRED_ROUNDS == 0:
            server.abort_unless(gateways.is_allowed)
        seen = stamp


async def _stop(*servers: HttpServer) -> None:
    """First nobody can connect any more, so that no call is taken that nobody will answer; then answers are given."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)  # connections that were made are accepted
    for server in servers:
        server.stop_accepting()
    await together(server.aclose() for server in servers)
