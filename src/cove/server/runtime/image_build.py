"""Build an image in a process of its own, as long as whoever asked for it is there."""

import asyncio
from contextlib import suppress
from functools import partial

from cove.errors import CoveError
from cove.local.threads import in_thread
from cove.model import BuildEvent, ImageMade
from cove.runtime.machine import Machine, examine_machine
from cove.runtime.provider import EmbeddedProvider
from cove.server.sandboxes.quotas import network_grants_of
from cove.server.sandboxes.start_protocol import Build
from cove.tasks import race
from cove.wire.frames import BUILD_EVENTS, encode_failure_frame


async def run_build(
    request: Build, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, machine: Machine | None
) -> None:
    """Build, and tell of it. Who asked says nothing more: the end of its side is the end of the build."""
    with suppress(ConnectionError):
        await race(_build(request, writer, machine), reader.read(1))


async def _build(request: Build, writer: asyncio.StreamWriter, machine: Machine | None) -> None:
    async def report(event: BuildEvent | ImageMade) -> None:
        writer.writelines(BUILD_EVENTS.encode(event))
        await writer.drain()

    try:
        if machine is None:
            machine = await in_thread(examine_machine)
        machine.home.belong_to(request.tenant)
        provider = EmbeddedProvider(machine)
        provider.read_grants = partial(network_grants_of, machine.home.path, request.tenant)
        image = await provider.build(request.directory, request.spec, report)
        await report(ImageMade(image=image))
    except CoveError as error:
        writer.write(encode_failure_frame(error))
        await writer.drain()
