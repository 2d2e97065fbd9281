"""Find the interpreters of code contexts, as a sandbox sees them."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from cove.core.jail import AGENT_DIRECTORY, EXECUTOR_DIRECTORY, IMAGE_PYTHON_DIRECTORY, PYTHON_DIRECTORY
from cove.errors import InterpreterNotReady
from cove.executor.borrowing import ALL, NOTHING
from cove.model import CodeInterpreter
from cove.runtime.programs import AGENT_SOURCES

OLDEST_NODE = 20
# Debian 13 and Ubuntu 25.04 package one that is new enough; npm has it for those before.
NODE_COMMAND = (
    "`sudo apt install nodejs`; where that is older, as in Debian 12 and Ubuntu 24.04, "
    "`sudo apt install npm && sudo npm install --global --prefix /usr/local node@22`"
)


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """A Python inside: the words that run it, the agent's modules for it, and packages that it borrows."""

    words: tuple[str, ...]
    agent: str
    packages: str = NOTHING
    source: CodeInterpreter = CodeInterpreter.COVE


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """A Node.js inside: the words that run it."""

    words: tuple[str, ...]
    source: CodeInterpreter = CodeInterpreter.COVE


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Paths inside: `pythons` and `nodes` are tried in their order."""

    pythons: tuple[PythonProgram, ...]
    nodes: tuple[NodeProgram, ...]
    executor: str
    home: str
    has_packages: bool
    image: str | None = None

    def require_pythons(self) -> tuple[PythonProgram, ...]:
        """Return those there are, or what to do."""
        if not self.pythons:
            raise InterpreterNotReady(
                "the Python environment for code contexts is not there: run `cove setup` once (it installs IPython, "
                "numpy, pandas and matplotlib for sandboxes), or set COVE_PYTHON to an environment of your own"
            )
        return self.pythons

    def python_command(self, program: PythonProgram, *, preload: bool) -> list[str]:
        """Return the fork server, with the usual packages imported or not; its control descriptor follows."""
        packages = "packages" if preload else "bare"
        return [*program.words, "-I", f"{self.executor}/server.py", program.agent, packages, program.packages]

    def require_nodes(self, language: str) -> tuple[NodeProgram, ...]:
        """Return those there are, or what to do."""
        if not self.nodes:
            in_image = "" if self.image is None else f", or in the image {self.image}, which has none"
            raise InterpreterNotReady(
                f"{language} contexts need Node.js {OLDEST_NODE} or newer below /usr, where sandboxes can see it"
                f"{in_image}: {NODE_COMMAND}; one installed under a home directory is not visible to them"
            )
        if not self.has_packages:
            raise InterpreterNotReady(
                f"{language} contexts need packages that were not installed when Cove was built: install a wheel that "
                "has them, or in a checkout `sudo apt install npm`, then `make setup`"
            )
        return self.nodes

    def node_command(self, program: NodeProgram, language: str) -> list[str]:
        """Return the JavaScript executor, which ends at once where its Node.js is too old."""
        # Code that is terminated in a callback leaves the bookkeeping of async_hooks behind: that must not end Node.
        options = ["--no-force-async-hooks-checks", f"{self.executor}/executor.mjs", language, str(OLDEST_NODE)]
        return [*program.words, *options]


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
    own = PythonProgram((f"{PYTHON_DIRECTORY}/bin/python3",), AGENT_DIRECTORY)
    return Interpreters((own,) if has_python else (), host_nodes(node), EXECUTOR_DIRECTORY, home, has_packages)


def host_nodes(node: str | None) -> tuple[NodeProgram, ...]:
    """Return the Node.js of the host, if it has one."""
    return () if node is None else (NodeProgram((node,)),)


def inside_image(
    version: tuple[int, int], own: tuple[str, ...], python: str, image_version: tuple[int, int]
) -> tuple[PythonProgram, ...]:
    """Return the Python of the image, where it is as new as the one that the environment was made for, then Cove's."""
    packages = f"{IMAGE_PYTHON_DIRECTORY}/lib/python{version[0]}.{version[1]}/site-packages"
    cove = PythonProgram(own, AGENT_DIRECTORY, f"{ALL}{packages}")
    if image_version < version:
        return (cove,)
    return PythonProgram((python,), f"{EXECUTOR_DIRECTORY}/{AGENT_SOURCES}", packages, CodeInterpreter.IMAGE), cove
