"""Make the root file system of a distribution by `mmdebstrap`, from the packages that this machine's apt uses."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from cove.errors import InterpreterNotReady, Unreachable, ValidationFailed
from cove.local.threads import Stop, finished, start_transfer
from cove.tasks import settled

T = TypeVar("T")

DISTRIBUTION: Final = "debian"
DEFAULT_SUITE: Final = "bookworm"
_SOURCES: Final = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))
_STEP_SECONDS: Final = 0.2
_TOLD: Final = 600


def bootstrap(distribution: str, suite: str, include: Sequence[str], target: Path, check: Callable[[], object]) -> None:
    """Write the tar archive of a small root. `check` is called again and again, and may raise to give up. Blocks."""
    if distribution != DISTRIBUTION:
        raise ValidationFailed(f"{distribution!r} cannot be bootstrapped: only {DISTRIBUTION} can")
    for word in (suite, *include):
        if not word or word.startswith("-") or not word.replace("-", "").replace(".", "").replace("+", "").isalnum():
            raise ValidationFailed(f"{word!r} is no name of a suite or a package")
    program = shutil.which("mmdebstrap")
    if program is None:
        raise InterpreterNotReady("bootstrapping needs mmdebstrap, which is not here: `sudo apt install mmdebstrap`")
    packages = [f"--include={','.join(include)}"] if include else []
    sources = [str(path) for path in find_sources()]
    _run([program, "--variant=minbase", "--format=tar", *packages, suite, str(target), *sources], check)


def find_sources() -> list[Path]:
    """Find the files by which this machine's apt knows where packages are."""
    plain, directory = _SOURCES
    listed = sorted(directory.iterdir()) if directory.is_dir() else []
    found = [path for path in (plain, *listed) if path.suffix in (".list", ".sources") and path.is_file()]
    return [path for path in found if path.stat().st_size]


def _run(command: Sequence[str], check: Callable[[], object]) -> None:
    """Run a program in a session of its own, so that all of it can be ended."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        while True:
            try:
                _, said = process.communicate(timeout=_STEP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                check()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)  # it removes what it has made
        process.communicate()
        raise
    if process.returncode:
        raise Unreachable(f"mmdebstrap failed: {said.decode('utf-8', 'replace').strip()[-_TOLD:]}")


async def bootstrapped(distribution: str, suite: str, include: Sequence[str], load: Callable[[str], Awaitable[T]]) -> T:
    """Make an archive beside the event loop, and give what loading it gives; nothing of it is left."""
    with Stop() as stop:
        directory = await finished(tempfile.mkdtemp, None, "cove-bootstrap-")
        target = Path(directory) / "root.tar"
        try:
            making = start_transfer(bootstrap, distribution, suite, include, target, stop.check)
            await settled(making, on_cancel=stop.set)
            return await load(str(target))
        finally:
            await finished(shutil.rmtree, directory)
