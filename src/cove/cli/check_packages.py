"""Check what was installed with Cove: optional packages, the console's files, those of the JavaScript executor."""

import shutil
from collections.abc import Collection
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cove import executor
from cove.cli.check import Check, install, ok, warning
from cove.core.jail import SYSTEM_PATH
from cove.local.extras import install_command
from cove.runtime.programs import PACKAGES

# The extra, the module that it brings, and what that is for.
EXTRAS: Final = (
    ("build", "dockerfile", "images from Dockerfiles"),
    ("mcp", "mcp", "`cove mcp` and /mcp"),
    ("s3", "obstore", "exports to s3://"),
    ("otel", "opentelemetry.sdk", "traces"),
    ("cluster", "ray", "`cove cluster`"),
)
# In a checkout npm has to be there; a wheel has what it makes.
REBUILD: Final = "in a checkout `make console`, which needs Node.js 20 and npm; elsewhere install a wheel that has it."


def check_extras() -> Check:
    """Look for the optional packages."""
    return judge_extras({extra for extra, module, _ in EXTRAS if _is_installed(module)})


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it lies in
        return False


def judge_extras(installed: Collection[str]) -> Check:
    """Name those that are missing, what each is for, and the command that brings it."""
    name = "extras (optional)"
    lacking = [(extra, purpose) for extra, _, purpose in EXTRAS if extra not in installed]
    there = ", ".join(extra for extra, *_ in EXTRAS if extra in installed)
    if not lacking:
        return ok(name, there)
    found = f"{f'{there}; ' if there else ''}not installed: {', '.join(extra for extra, _ in lacking)}"
    commands = "; ".join(f"for {purpose} `{install_command(extra)}`" for extra, purpose in lacking)
    return warning(name, found, f"{commands}.")


def check_console() -> Check:
    """Look for the files of the web console."""
    return judge_console(is_built=files("cove.server.console").joinpath("static", "index.html").is_file())


def judge_console(*, is_built: bool) -> Check:
    """Say how to get the console of `cove serve`, where it is missing."""
    name = "web console (optional)"
    return ok(name, "served by `cove serve`") if is_built else warning(name, "its files were not built", REBUILD)


def check_bootstrap() -> Check:
    """Look for the program that makes images of Debian."""
    return judge_bootstrap(shutil.which("mmdebstrap", path=SYSTEM_PATH))


def judge_bootstrap(path: str | None) -> Check:
    """Say how to get it."""
    name = "mmdebstrap (optional)"
    if path is not None:
        return ok(name, path)
    return warning(name, "not installed", f"needed for `cove image bootstrap`: {install('mmdebstrap')}")


def has_node_packages() -> bool:
    """Return whether the packages of the JavaScript executor were installed when Cove was built."""
    return (Path(executor.__file__).parent / PACKAGES).is_dir()
