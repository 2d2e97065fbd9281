"""Verify the hosts outside by the certificates that the host trusts."""

import ssl
from functools import cached_property
from pathlib import Path

_MOST_BYTES = 16 << 20


class HostTrust:
    """Made while the caller's files can be read; parsed when the first connection is intercepted."""

    def __init__(self) -> None:
        paths = ssl.get_default_verify_paths()
        self._directory = paths.capath
        self._certificates = _read(paths.cafile)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """A client's side of TLS, HTTP/1.1 only. Raises OSError for a file that has no certificates."""
        context = ssl.create_default_context(capath=self._directory, cadata=self._certificates)
        context.set_alpn_protocols(["http/1.1"])
        return context


def _read(path: str | None) -> str | None:
    try:
        with Path(path or "/dev/null").open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii", "ignore") or None
    except OSError:
        return None
