"""Let the programs of a sandbox trust its certificate authority, and see which secrets there are."""

import os
from collections.abc import Mapping
from pathlib import Path

from cove.core.trust import HOST_BUNDLES
from cove.model import Network, NetworkPolicy

BUNDLE_FILE = "ca-bundle.pem"
KEY_FILE = "egress.key"
_MOST_BUNDLE_BYTES = 16 << 20


def write_bundle(path: Path, certificate: str) -> None:
    """Write what the host trusts and that certificate, for the sandbox's user to read. Blocks.

    The file is written in place: it may be bound inside already.
    """
    trusted = next((text for each in HOST_BUNDLES if (text := _read(Path(each)))), b"")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with open(descriptor, "wb") as file:
        file.write(trusted.rstrip(b"\n") + b"\n" + certificate.encode())
        file.truncate()
        os.fchmod(file.fileno(), 0o644)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BUNDLE_BYTES)
    except OSError:
        return b""


def placeholders(network: Network | NetworkPolicy, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that stand for secrets: programs that insist on a key find one, which is worth nothing."""
    if not isinstance(network, NetworkPolicy):
        return {}
    names = {secret.name for rule in network.rules for secret in rule.secrets}
    return {name: f"cove-secret-{name}" for name in sorted(names) if name not in env and name.isidentifier()}
