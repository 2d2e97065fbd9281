"""Remove what calls that met a fault may have made without telling anybody."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from cove import AsyncImage, AsyncSandbox, AsyncSnapshot, AsyncVolume
from cove.errors import CoveError, NotFound
from soak.possible import Violation
from soak.subject import IMAGE, Where

T = TypeVar("T")

_SECONDS = 300.0  # a server that was killed comes back meanwhile
_PAUSE = 0.1


async def remove_leftovers(where: Where, kept: Sequence[str]) -> None:
    """Destroy all sandboxes but those; without any, remove also all that sandboxes leave behind."""
    for info in await _insist(partial(AsyncSandbox.list, url=where.url, api_key=where.key)):
        if info.id not in kept:
            await _insist(partial(_destroy, where, info.id))
    if kept:
        return
    for snapshot in await _insist(partial(AsyncSnapshot.list, url=where.url, api_key=where.key)):
        await _insist(partial(_delete, where, AsyncSnapshot.get, snapshot.id))
    for volume in await _insist(partial(AsyncVolume.list, url=where.url, api_key=where.key)):
        await _insist(partial(_delete, where, AsyncVolume.get, volume.name))
    for image in await _insist(partial(AsyncImage.list, url=where.url, api_key=where.key)):
        if image.name != IMAGE:
            await _insist(partial(_delete, where, AsyncImage.get, image.name))
    if not where.is_cluster:
        await _insist(partial(_delete_backups, where))
    where.has_leftovers = False


async def _destroy(where: Where, id: str) -> None:
    try:
        async with AsyncSandbox.connect(id, url=where.url, api_key=where.key) as found:
            await found.destroy()
    except NotFound:
        return


async def _delete_backups(where: Where) -> None:
    async with AsyncSandbox.create(url=where.url, api_key=where.key) as sandbox:
        for backup in await sandbox.backups.list():
            await sandbox.backups.delete(backup.id)


async def _delete(
    where: Where, get: Callable[..., Awaitable[AsyncSnapshot | AsyncVolume | AsyncImage]], id: str
) -> None:
    try:
        await (await get(id, url=where.url, api_key=where.key)).delete()
    except NotFound:
        return


async def _insist(call: Callable[[], Awaitable[T]]) -> T:
    """Call until no fault is in the way."""
    until = asyncio.get_running_loop().time() + _SECONDS
    while True:
        try:
            return await call()
        except CoveError as error:
            if asyncio.get_running_loop().time() > until:
                raise Violation(f"what faults have left cannot be removed: {error!r}") from error
            await asyncio.sleep(_PAUSE)
