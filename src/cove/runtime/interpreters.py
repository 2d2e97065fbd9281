"""Find the interpreters of code contexts, as a sandbox sees them."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cove.core.jail import AGENT_DIRECTORY, EXECUTOR_DIRECTORY, PYTHON_DIRECTORY
from cove.errors import InterpreterNotReady


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Paths inside: `python` is the environment made by `cove setup`, `node` a program below /usr."""

    python: str | None
    node: str | None
    agent: str
    executor: str
    home: str
    has_packages: bool
    image: str | None = None

    def python_command(self, *, preload: bool) -> list[str]:
        """Return the fork server, with the usual packages imported or not; its control descriptor follows."""
        self._check_image("python", "python3")
        if self.python is None:
            raise InterpreterNotReady(
                "the Python environment for code contexts is not there: run `cove setup` once (it installs IPython, "
                "numpy, pandas and matplotlib for sandboxes), or set COVE_PYTHON to an environment of your own"
            )
        packages = "packages" if preload else "bare"
        return [f"{self.python}/bin/python3", "-I", f"{self.executor}/server.py", self.agent, packages]

    def _check_image(self, language: str, program: str) -> None:
        if self.image is not None:
            raise InterpreterNotReady(
                f"{language} contexts are not there in a sandbox on an image ({self.image}): run `{program}` of the "
                "image by exec or in a session, or create the sandbox without an image"
            )

    def node_command(self, language: str) -> list[str]:
        """Return the JavaScript executor."""
        self._check_image(language, "node")
        if self.node is None:
            raise InterpreterNotReady(
                f"{language} contexts need Node.js 20 or newer below /usr, where sandboxes can see it: "
                "`sudo apt install nodejs`; one installed under a home directory is not visible to them"
            )
        if not self.has_packages:
            raise InterpreterNotReady(
                f"{language} contexts need packages that were not installed when Cove was built: install npm, then "
                "`pip install --force-reinstall --no-deps` Cove from its source, or run `make setup` in a checkout"
            )
        # Code that is terminated in a callback leaves the bookkeeping of async_hooks behind: that must not end Node.
        return [self.node, "--no-force-async-hooks-checks", f"{self.executor}/executor.mjs", language]


def find_python_environment(home: Path) -> Path | None:
    """COVE_PYTHON, or what `cove setup` has made."""
    configured = os.environ.get("COVE_PYTHON")
    found = Path(configured) if configured else home / "python"
    return found if (found / "bin" / "python3").exists() else None


def find_node() -> str | None:
    """Node.js where every sandbox can see it."""
    found = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
    return found if found is not None and os.path.realpath(found).startswith("/usr/") else None


def inside_jail(has_python: bool, node: str | None, home: str, *, has_packages: bool) -> Interpreters:
    """Return the fixed places in a jail."""
    python = PYTHON_DIRECTORY if has_python else None
    return Interpreters(python, node, AGENT_DIRECTORY, EXECUTOR_DIRECTORY, home, has_packages)
