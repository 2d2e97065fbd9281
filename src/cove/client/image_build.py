"""Send the directory of a build: packed beside the event loop, without what `.dockerignore` hides."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from os.path import isabs

from cove.archive.stream import Stream
from cove.client.files import read_packed
from cove.core.identifier import new_identifier
from cove.errors import ValidationFailed
from cove.images.context_archive import pack_context, read_bounded, shown_name
from cove.local.threads import finished
from cove.model import BuildSpec

_MOST_DOCKERFILE_BYTES = 1 << 20

Where = dict[str, str]


@asynccontextmanager
async def opened_context(
    directory: str | None, spec: BuildSpec
) -> AsyncGenerator[tuple[AsyncGenerator[bytes, None], Where], None]:
    """Give the archive of a directory, in pieces, and what is to be said of its Dockerfile; of a preset, nothing."""
    if (directory is None) == (spec.preset is None):
        raise ValidationFailed("a build needs a directory, or a preset, and not both")
    if directory is None:
        yield _nothing(), {}
        return
    name, apart, where = spec.dockerfile, None, {}
    if isabs(name):
        apart = await finished(read_bounded, name, _MOST_DOCKERFILE_BYTES)
        name = f".dockerfile-{new_identifier()}"
        where = {"dockerfile": name, "outside": await finished(shown_name, spec.dockerfile)}

    def pack(stream: Stream) -> None:
        pack_context(directory, name, apart, stream)

    async with aclosing(read_packed(directory, pack)) as chunks:
        yield chunks, where


async def _nothing() -> AsyncGenerator[bytes, None]:
    yield b""
