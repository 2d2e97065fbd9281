"""pip install of a small package: in a sandbox with a network policy, beside the same pip on the host.

The index is the one that this machine's pip is set up for: the preset `packages` finds it as pip does.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.beside.turns import Found, in_turn, print_found
from cove import AsyncSandbox, NetworkPolicy

_TIMES = 5
_PACKAGE = "six"
# The system's Python, which a sandbox sees too.
_PIP = ["/usr/bin/python3", "-m", "pip"]
_OPTIONS = ["--no-cache-dir", "--no-deps", "--ignore-installed", "--disable-pip-version-check", "--quiet"]
_INSTALL = [*_PIP, "install", *_OPTIONS, "--upgrade", "--target", "lib", _PACKAGE]


async def measure() -> Found:
    """Nothing where no index answers."""
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="cove-bench-") as directory:
        if not await _installs_into(Path(directory)):
            print("network skipped: pip reaches no package index from here", file=sys.stderr)
            return found
        async with AsyncSandbox.create(network=NetworkPolicy(allow=["packages"])) as sandbox:

            async def by_policy() -> None:
                (await sandbox.exec(_INSTALL, timeout=120)).check()

            async def direct() -> None:
                assert await _installs_into(Path(directory))

            await in_turn(found, "install", {"Cove, by policy": by_policy, "direct": direct}, _TIMES)
    return found


async def _installs_into(directory: Path) -> bool:
    try:
        process = await asyncio.create_subprocess_exec(*_INSTALL, cwd=directory, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return False
    return await process.wait() == 0


if __name__ == "__main__":
    print_found(asyncio.run(measure()))
