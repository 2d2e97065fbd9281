"""Tell how far the making of an image is, as a stream of events for whoever reads it."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from cove.model import ImageInfo, ImageMade, TransferProgress
from cove.tasks import Tasks, Work

Make = Callable[[Callable[[TransferProgress], object]], Work[ImageInfo]]


async def tell_progress(make: Make) -> AsyncGenerator[TransferProgress | ImageMade, None]:
    """Give the latest of what is told whenever the reader is ready, then the image. A reader who leaves ends it."""
    latest: list[TransferProgress] = []
    is_told = asyncio.Event()

    def tell(progress: TransferProgress) -> None:
        latest[:] = [progress]
        is_told.set()

    async with Tasks(lambda _: None) as tasks:
        making = tasks.start(make(tell), on_end=is_told.set)
        while latest or not making.done():
            if latest:
                yield latest.pop()
            else:
                is_told.clear()
                await is_told.wait()
        yield ImageMade(image=making.result())
