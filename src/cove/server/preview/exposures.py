"""Exposed ports of a server's sandboxes, and the public address of previews.

The ports are recorded at the place of their sandbox, so that a gateway can check a token without it. The address is
written by the server when it listens, and read by every runtime.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from cove.core.exposure import Exposure
from cove.local.state import replace_file
from cove.local.threads import in_thread
from cove.model import ExposedPort
from cove.server.configuration import Configuration
from cove.server.sandboxes.directory import Directory

_EVERYWHERE = ("0.0.0.0", "::", "localhost")  # noqa: S104  # what a configuration says
_ADDRESS_FILE = "preview.json"
_PORTS_FILE = "ports.json"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Exposure, ...])


class PreviewAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`base` is the origin above all labels, as in `http://localhost:8788`; `path_base` where labels are paths."""

    base: str = "http://localhost:8788"
    path_base: str = "http://127.0.0.1:8788"

    @property
    def scheme(self) -> str:
        """http, or https where somebody in front of the server speaks it."""
        return self.base.partition("://")[0]

    def url(self, label: str) -> str:
        """The label as a host name."""
        scheme, _, authority = self.base.partition("://")
        return f"{scheme}://{label}.{authority}"

    def path_url(self, label: str) -> str:
        """The label as the first segment of a path."""
        return f"{self.path_base}/{label}/"


def address_of(configuration: Configuration, port: int) -> PreviewAddress:
    """Return the configured address; otherwise the port that previews are served on."""
    if configuration.preview_url is not None:
        base = configuration.preview_url.rstrip("/")
        return PreviewAddress(base=base, path_base=base)
    host = "127.0.0.1" if configuration.host in _EVERYWHERE else configuration.host
    host = f"[{host}]" if ":" in host else host
    return PreviewAddress(base=f"http://localhost:{port}", path_base=f"http://{host}:{port}")


def write_address(server: Path, address: PreviewAddress) -> None:
    """Into the server's own directory, all at once. Blocks."""
    replace_file(server / _ADDRESS_FILE, msgspec.json.encode(address))


def read_address(server: Path) -> PreviewAddress:
    """Return the address as it was last written. Blocks."""
    try:
        return msgspec.json.decode((server / _ADDRESS_FILE).read_bytes(), type=PreviewAddress)
    except FileNotFoundError:
        return PreviewAddress()


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
        label = exposure.label(self._key, await in_thread(self._directory.code))
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
    return place / _PORTS_FILE


def write_exposures(place: Path, exposures: Iterable[Exposure]) -> None:
    """Replace the record, all at once. Blocks."""
    replace_file(exposures_path(place), _encoder.encode(tuple(exposures)))


def read_exposures(place: Path) -> tuple[Exposure, ...]:
    """Return what is recorded at that place; nothing if there is none. Blocks."""
    try:
        return _decoder.decode(exposures_path(place).read_bytes())
    except FileNotFoundError:
        return ()
