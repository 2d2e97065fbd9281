"""Exposed ports of a server's sandbox: recorded at its place, so that a gateway can check a token without it."""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from cove.core.exposure import Exposure
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
    path = exposures_path(place)
    building = path.with_suffix(".new")
    descriptor = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_encoder.encode(tuple(exposures)))
    building.rename(path)


def read_exposures(place: Path) -> tuple[Exposure, ...]:
    """Return what is recorded at that place; nothing if there is none. Blocks."""
    try:
        return _decoder.decode(exposures_path(place).read_bytes())
    except FileNotFoundError:
        return ()
