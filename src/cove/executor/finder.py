"""Import the backend for figures, which lies where user code does not look, and make matplotlib choose it."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

FIGURES, CHARTS = "_cove_figures", "_cove_charts"


class Finder:
    """Finds the backend for figures and gives it a `display`, by the function that it is made with."""

    def __init__(self, give_display: Callable[[object], None]) -> None:
        self.give_display = give_display

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in (FIGURES, CHARTS):
            directory = os.path.dirname(os.path.abspath(copy_fonts.__code__.co_filename))
            spec = importlib.machinery.PathFinder.find_spec(name, [directory])
            return prepared(spec, after=self.give_display) if name == FIGURES else spec
        if name == "matplotlib":
            return prepared(importlib.machinery.PathFinder.find_spec(name, path), copy_fonts, choose_backend)
        return None


def prepared(
    spec: ModuleSpec | None,
    before: Callable[[], None] = lambda: None,
    after: Callable[[object], None] = lambda module: None,
) -> ModuleSpec | None:
    """Return the same with something to do before and after the module is executed."""
    if spec is not None and spec.loader is not None:
        execute = spec.loader.exec_module

        def execute_prepared(module: ModuleType) -> None:
            before()
            execute(module)
            after(module)

        spec.loader.exec_module = execute_prepared  # type: ignore[method-assign]  # of this one loader
    return spec


def choose_backend(matplotlib: Any) -> None:
    """Figures come back as pictures, unless the user's environment names another backend."""
    if not os.environ.get("MPLBACKEND"):
        matplotlib.rcParams["backend"] = "module://" + FIGURES
    give_names()


def give_names() -> None:
    """Give IPython the one name that Matplotlib before 3.9, as of an image, asks it for, and that it has no more."""
    from IPython.core import pylabtools

    if not hasattr(pylabtools, "backend2gui"):
        pylabtools.backend2gui = {}


def copy_fonts() -> None:
    """Put the font list that set-up has made where matplotlib looks for one."""
    import shutil

    source = os.path.join(sys.prefix, "share", "cove", "matplotlib")
    target = os.path.expanduser("~/.cache/matplotlib")
    with contextlib.suppress(OSError):
        if os.path.isdir(source) and not os.path.isdir(target):
            shutil.copytree(source, target)
