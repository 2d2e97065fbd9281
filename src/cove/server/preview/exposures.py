"""Exposed ports of a server's sandbox: recorded at its place, so that a gateway can check a token without it."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from cove.core.exposure import Exposure
from cove.local.state import replace_file
from cove.local.threads import in_thread
from cove.model import ExposedPort
from cove.server.preview.address import read_address
from cove.server.sandboxes.directory import Directory

_FILE = "ports.json"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Exposure, ...])


class RecordedPorts:
    """The publisher of a runtime. The record stays when the sandbox stops, and goes with its place."""

    def __init__(self, directory: Directory, key: str, exposures: Iterable[Exposure] = ()) -> None:
        self._directory = directory
        self._key = key
        self._written: tuple[Exposure, ...] | None = tuple(exposures)

    async def publish(self, exposures: Iterable[Exposure]) -> None:
        """Write the record, if it says anything else."""
        wanted = tuple(exposures)
        if wanted != self._written:
            self._written = None
            await in_thread(write_exposures, self._directory.place(self._key), wanted)
            self._written = wanted

    async def describe(self, exposure: Exposure) -> ExposedPort:
        """Describe an exposure by the address that the server has at this time."""
        address = await in_thread(read_address, self._directory.server)
        label = exposure.label(self._key)
        return ExposedPort(
            port=exposure.port,
            url=address.url(label),
            path_url=address.path_url(label),
            token=exposure.token,
            name=exposure.name,
        )

    async def close(self) -> None:
        """Do nothing: the record stays."""


def exposures_path(place: Path) -> Path:
    """The record of that place."""
    return place / _FILE


def write_exposures(place: Path, exposures: Iterable[Exposure]) -> None:
    """Replace the record, all at once. Blocks."""
    replace_file(exposures_path(place), _encoder.encode(tuple(exposures)))


def read_exposures(place: Path) -> tuple[Exposure, ...]:
    """Return what is recorded at that place; nothing if there is none. Blocks."""
    try:
        return _decoder.decode(exposures_path(place).read_bytes())
    except FileNotFoundError:
        return ()
