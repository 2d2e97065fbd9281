"""While the package is built: install what the JavaScript executor needs, and build the console.

Nothing is fetched later: whoever installs the package, or builds a wheel from the source package, needs no npm.
"""

import shutil
import subprocess
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NodePackages(BuildHookInterface[object]):  # type: ignore[type-arg, unused-ignore]
    """Runs npm; without it the package works, except for JavaScript and TypeScript contexts and the console."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        if (Path(self.root) / "PKG-INFO").exists():  # a source package, which has them
            return
        self._install_packages()
        if version != "editable":  # a checkout builds it by `make console`
            subprocess.run(["bash", "scripts/console.bash", "--if-possible"], cwd=self.root, check=True)

    def _install_packages(self) -> None:
        directory = Path(self.root) / "src/cove/executor"
        if (directory / "node_modules").exists():
            return
        npm = shutil.which("npm")
        if npm is None:
            self.app.display_warning("npm is not installed: JavaScript and TypeScript contexts will not work")
            return
        command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--omit=dev", "--loglevel=error"]
        subprocess.run(command, cwd=directory, check=True)
