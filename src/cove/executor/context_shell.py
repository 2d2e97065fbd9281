"""IPython's shell as a context has it: displays, values and errors go to the runtime, and nothing else is kept."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import warnings

from cove.executor import channel as frames
from cove.executor import finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Protocol

    Send = Callable[[bytes, dict[str, object]], None]

    class Outcome(Protocol):
        """The outcome of a cell as IPython says it."""

        success: bool
        error_before_exec: BaseException | None
        error_in_exec: BaseException | None

    class ContextShell(Protocol):
        """The part of IPython's shell that is used here; `failure` is the error that it has shown."""

        failure: dict[str, str] | None
        execution_count: int

        def run_cell(self, code: str, store_history: bool = False, silent: bool = False) -> Outcome:
            """Run code as a cell."""


def output_classes(send: Send) -> tuple[type, type]:
    """Make the classes that IPython gives values and displays to: they go to the runtime."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher

    class Publisher(DisplayPublisher):
        def publish(self, data: dict[str, object], *_: object, **options: object) -> None:
            send(frames.DISPLAY, data)

    class Hook(DisplayHook):
        def __call__(self, result: object = None) -> None:
            self.check_for_underscore()
            if result is not None and not self.quiet():
                bundle, _ = self.compute_format_data(result)
                self.update_user_ns(result)
                self.fill_exec_result(result)
                if bundle:
                    send(frames.VALUE, bundle)
                    close_figure(result)

    return Hook, Publisher


def shell_class(send: Send, own_files: frozenset[str]) -> Any:
    """IPython's shell, with its output and errors sent to the runtime."""
    from IPython.core.interactiveshell import InteractiveShell

    hook, publisher = output_classes(send)

    class Shell(InteractiveShell):
        displayhook_class = hook
        display_pub_class = publisher

        def showtraceback(
            self,
            exc_tuple: tuple[type[BaseException], BaseException, TracebackType] | None = None,
            *args: object,
            **options: object,
        ) -> None:
            shown = exc_tuple or sys.exc_info()
            hide_own_frames(shown[1], own_files)
            super().showtraceback(shown, *args, **options)

        def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
            self.failure = {
                "name": getattr(etype, "__name__", str(etype)),
                "message": message_of(evalue),
                "traceback": "\n".join(stb),
            }

        def ask_exit(self) -> None:
            raise SystemExit

        def init_completer(self) -> None:
            """Put the completer off until somebody asks for it: nobody presses the tabulator here."""

        def __getattr__(self, name: str) -> object:
            if name != "Completer":
                raise AttributeError("%r has no attribute %r" % (type(self).__name__, name))
            super().init_completer()
            return vars(self)[name]

    return Shell


def own_directory(path: str) -> str:
    """Make a directory that no other user of the sandbox can put modules into; under another name if it is theirs."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return tempfile.mkdtemp(prefix=".ipython-")
    return path


def make_shell(send: Send, own_file: str) -> ContextShell:
    """Return an IPython shell without history, without files in the home directory, without output of its own.

    It gives displays and values to `send`. Frames of `own_file`, and of this one, are nothing to the user.
    """
    from traitlets.config import Config

    own_files = frozenset((own_file, make_shell.__code__.co_filename))
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.xmode = "Context"
    config.InteractiveShell.autoindent = False
    if "IPYTHONDIR" not in os.environ:
        os.environ["IPYTHONDIR"] = own_directory("/tmp/.ipython")
    shell = shell_class(send, own_files).instance(config=config)
    shell.failure = None
    shell.system = shell.system_raw
    for known in ("To exit: use", "You executed the system command !pip"):
        warnings.filterwarnings("ignore", message=known)
    shell.user_ns.pop("__warningregistry__", None)
    png = shell.display_formatter.formatters["image/png"]
    png.for_type_by_name("matplotlib.figure", "Figure", lambda figure: __import__(finder.FIGURES).as_png(figure))
    bundles = shell.display_formatter.mimebundle_formatter
    bundles.for_type_by_name("matplotlib.figure", "Figure", lambda figure: __import__(finder.FIGURES).as_data(figure))
    made: ContextShell = shell
    return made


def hide_own_frames(error: BaseException | None, own_files: frozenset[str]) -> None:
    """An interruption is raised from a frame of ours, which is nothing to the user. The outermost is IPython's."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        at = error.__traceback__
        while at is not None:
            while at.tb_next is not None and at.tb_next.tb_frame.f_code.co_filename in own_files:
                at.tb_next = at.tb_next.tb_next
            at = at.tb_next
        error = error.__cause__ or error.__context__


def failure_of(error: BaseException | None) -> dict[str, str]:
    """Return an error that the shell has not shown."""
    name, message = type(error).__name__, message_of(error)
    return {"name": name, "message": message, "traceback": "%s: %s" % (name, message) if message else name}


def message_of(error: BaseException | None) -> str:
    """Return the text of an exception, also when its own __str__ fails."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001  # code of the cell
        return "<no message: __str__ raised %s>" % type(failure).__name__


def close_figure(result: object) -> None:
    """A figure that was the result of a cell is not shown once more at its end."""
    figures = sys.modules.get(finder.FIGURES)
    if figures is not None and isinstance(result, figures.Figure):
        figures.pyplot.close(result)
