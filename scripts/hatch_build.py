"""While the package is built: install what the JavaScript executor needs, so that nothing is fetched later."""

import shutil
import subprocess
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NodePackages(BuildHookInterface[object]):  # type: ignore[type-arg, unused-ignore]
    """Runs npm; without it the package works, except for JavaScript and TypeScript contexts."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, object]) -> None:
        directory = Path(self.root) / "src/cove/executor"
        if (directory / "node_modules").exists():
            return
        npm = shutil.which("npm")
        if npm is None:
            self.app.display_warning("npm is not installed: JavaScript and TypeScript contexts will not work")
            return
        command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--omit=dev", "--loglevel=error"]
        subprocess.run(command, cwd=directory, check=True)
