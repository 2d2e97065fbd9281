"""The public address of previews: written by the server when it listens, read by every runtime."""

from pathlib import Path

import msgspec

from cove.local.state import replace_file
from cove.server.configuration import Configuration

_EVERYWHERE = ("0.0.0.0", "::", "localhost")  # noqa: S104  # what a configuration says
_FILE = "preview.json"


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
    replace_file(server / _FILE, msgspec.json.encode(address))


def read_address(server: Path) -> PreviewAddress:
    """Return the address as it was last written. Blocks."""
    try:
        return msgspec.json.decode((server / _FILE).read_bytes(), type=PreviewAddress)
    except FileNotFoundError:
        return PreviewAddress()
