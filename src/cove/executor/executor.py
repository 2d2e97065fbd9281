"""One Python context: IPython's shell, told over a channel what to run.

Text goes to the real standard output and error, so that what child processes print is seen too. Results,
displays and errors go to the channel.
"""

import base64
import builtins
import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import sys
import warnings

from channel import Channel, bounded

# Out of the way of what user code opens and closes.
FIRST_CHANNEL_DESCRIPTOR = 200
PRELOADED = ("numpy", "pandas", "matplotlib.pyplot")

# Names that belong to the user's own modules in a context.
OWN_MODULES = ("channel", "executor", "init", "kernel", "launcher", "protocol", "server")

_shell = None
_channel = None


def warm_up():
    # type: () -> None
    """Import what is installed of the usual packages and make the shell that every context gets a copy of."""
    prepare_matplotlib()
    for name in (*PRELOADED, "_cove_figures"):
        with contextlib.suppress(ImportError):
            __import__(name)
    global _shell
    _shell = make_shell()


def prepare_matplotlib():
    # type: () -> None
    """Give it the font list that set-up has made, in a place where it may write."""
    os.environ["MPLBACKEND"] = "module://_cove_figures"
    source = os.path.join(sys.prefix, "share", "cove", "matplotlib")
    target = os.path.expanduser("~/.cache/matplotlib")
    with contextlib.suppress(OSError):
        if os.path.isdir(source) and not os.path.isdir(target):
            shutil.copytree(source, target)
    os.environ["MPLCONFIGDIR"] = target


def make_shell():
    # type: () -> object
    """An IPython shell without history, without files in the home directory, without output of its own."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, *, transient=None, update=False, **_):
            send_bundle("display", data)

    class Hook(DisplayHook):
        def __call__(self, result=None):
            self.check_for_underscore()
            if result is not None and not self.quiet():
                bundle, _ = self.compute_format_data(result)
                self.update_user_ns(result)
                self.fill_exec_result(result)
                if bundle:
                    send_bundle("result", bundle)

    class Shell(InteractiveShell):
        displayhook_class = Hook
        display_pub_class = Publisher

        def _showtraceback(self, etype, evalue, stb):
            self.failure = {
                "name": getattr(etype, "__name__", str(etype)),
                "message": str(evalue),
                "traceback": "\n".join(stb),
            }

        def ask_exit(self):
            raise SystemExit

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor"
    config.InteractiveShell.xmode = "Context"
    config.InteractiveShell.autoindent = False
    os.environ.setdefault("IPYTHONDIR", "/tmp/.ipython")
    shell = Shell.instance(config=config)
    shell.failure = None
    shell.system = shell.system_raw
    warnings.filterwarnings("ignore", message="To exit: use")
    shell.user_ns.pop("__warningregistry__", None)
    return shell


def run(channel):
    # type: (int) -> None
    """Serve one context until the runtime closes the channel."""
    global _channel
    own = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, FIRST_CHANNEL_DESCRIPTOR)
    os.close(channel)
    _channel = Channel(socket.socket(fileno=own))
    start_afresh()
    _channel.send("ready")
    while (request := next_request()) is not None:
        run_cell(request)
    os._exit(0)


def next_request():
    # type: () -> dict[str, object] | None
    """An interruption that comes between two cells is for nobody."""
    while True:
        try:
            return _channel.receive()
        except KeyboardInterrupt:
            continue


def start_afresh():
    # type: () -> None
    """What must differ from context to context, and what a context cannot have."""
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    builtins.input = no_input
    user_site = os.path.expanduser("~/.local/lib/python%d.%d/site-packages" % sys.version_info[:2])
    sys.path[:] = ["", user_site, *[path for path in sys.path if "/run/cove/" not in path]]
    sys.argv = [""]
    for name in OWN_MODULES:
        sys.modules.pop(name, None)


def no_input(prompt=""):
    # type: (str) -> str
    """There is nobody to ask."""
    raise EOFError("input() is not available in a code context: pass the value in the code")


def run_cell(request):
    # type: (dict[str, object]) -> None
    """Run one cell and report its end, whatever it did."""
    _shell.failure = None
    count = _shell.execution_count
    try:
        outcome = _shell.run_cell(request["code"], store_history=True, silent=False)
        if not outcome.success and _shell.failure is None:
            error = outcome.error_before_exec or outcome.error_in_exec
            _shell.failure = {"name": type(error).__name__, "message": str(error), "traceback": str(error)}
        show_figures()
    except KeyboardInterrupt:
        _shell.failure = {"name": "KeyboardInterrupt", "message": "", "traceback": "KeyboardInterrupt"}
    finish(count)


def finish(count):
    # type: (int) -> None
    """Everything printed is in the pipes before the end is told. Not to be interrupted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        if _shell.failure is not None:
            _channel.send("error", **_shell.failure)
        _channel.send("done", count=count)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def show_figures():
    # type: () -> None
    """Figures that the cell has left open are its results."""
    figures = sys.modules.get("_cove_figures")
    if figures is not None:
        figures.show()


def send_bundle(kind, data):
    # type: (str, dict[str, object]) -> None
    """Send what an object looks like; bytes travel as base64."""
    plain = {mime: as_text(value) for mime, value in data.items()}
    kept, cut = bounded(plain)
    _channel.send(kind, data=kept, truncated=cut)


def as_text(value):
    # type: (object) -> object
    """Bytes as base64, everything else as it is."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
