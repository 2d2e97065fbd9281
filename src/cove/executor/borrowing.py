"""Let the Python of an image use IPython of Cove's environment: what it has itself comes first."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# IPython and what it needs: all of it runs on any newer Python. What is compiled for one Python alone is not here.
NAMES = frozenset(
    (
        *("IPython", "asttokens", "decorator", "executing", "ipython_pygments_lexers", "jedi", "matplotlib_inline"),
        *("parso", "pexpect", "prompt_toolkit", "psutil", "ptyprocess", "pure_eval", "pygments", "stack_data"),
        *("traitlets", "typing_extensions", "wcwidth"),
    )
)
NOTHING = "-"
ALL = "all:"


class Borrowed:
    """Finds packages by their names in a directory that is not on the path."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or name not in NAMES:
            return None
        return PathFinder.find_spec(name, [self.directory])


def borrow(packages: str) -> None:
    """Have all packages of a directory on the path (`all:DIRECTORY`), or those of IPython, or nothing."""
    if packages.startswith(ALL):
        sys.path.append(packages[len(ALL) :])
    elif packages != NOTHING:
        sys.meta_path.append(Borrowed(packages))
