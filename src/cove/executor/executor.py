"""One Python context: IPython's shell, told over a channel what to run.

Text goes to the real standard output and error, so that what child processes print is seen too. Results,
displays and errors go to the channel.
"""

import _thread
import base64
import builtins
import contextlib
import fcntl
import gc
import os
import random
import shutil
import signal
import site
import socket
import sys
import warnings

import channel as frames

# Out of the way of what user code opens and closes.
FIRST_CHANNEL_DESCRIPTOR = 200
PRELOADED = ("numpy", "pandas", "matplotlib.pyplot")

# Names that belong to the user's own modules in a context.
OWN_MODULES = ("channel", "executor", "files", "init", "kernel", "launcher", "protocol", "server")
MOST_MESSAGE_CHARACTERS = 1 << 20

_shell = None
_channel = None
_main = 0
_pid = 0
# An interruption outside a cell is for nobody; one that comes while a frame is being sent waits for its end.
_is_active = False
_is_sending = False
_is_interrupted = False


def warm_up():
    # type: () -> None
    """Import what is installed of the usual packages and make the shell that every context gets a copy of."""
    prepare_matplotlib()
    for name in (*PRELOADED, "_cove_figures"):
        with contextlib.suppress(ImportError):
            __import__(name)
    global _shell
    _shell = make_shell()
    os.makedirs(user_site(), exist_ok=True)  # an import remembers that a directory is not there
    gc.collect()
    gc.freeze()  # what is old stays shared: the collector would write to it


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
            send_bundle(frames.DISPLAY, data)

    class Hook(DisplayHook):
        def __call__(self, result=None):
            self.check_for_underscore()
            if result is not None and not self.quiet():
                bundle, _ = self.compute_format_data(result)
                self.update_user_ns(result)
                self.fill_exec_result(result)
                if bundle:
                    send_bundle(frames.VALUE, bundle)
                    close_figure(result)

    class Shell(InteractiveShell):
        displayhook_class = Hook
        display_pub_class = Publisher

        def showtraceback(self, exc_tuple=None, *args, **options):
            exc_tuple = exc_tuple or sys.exc_info()
            hide_own_frames(exc_tuple[1])
            super().showtraceback(exc_tuple, *args, **options)

        def _showtraceback(self, etype, evalue, stb):
            self.failure = {
                "name": getattr(etype, "__name__", str(etype)),
                "message": message_of(evalue),
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
    for known in ("To exit: use", "You executed the system command !pip"):
        warnings.filterwarnings("ignore", message=known)
    shell.user_ns.pop("__warningregistry__", None)
    if "_cove_figures" in sys.modules:
        png = shell.display_formatter.formatters["image/png"]
        png.for_type_by_name("matplotlib.figure", "Figure", sys.modules["_cove_figures"].as_png)
    return shell


def hide_own_frames(error):
    # type: (BaseException | None) -> None
    """An interruption is raised from a frame of ours, which is nothing to the user. The outermost is IPython's."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        at = error.__traceback__
        while at is not None:
            while at.tb_next is not None and at.tb_next.tb_frame.f_code.co_filename == run.__code__.co_filename:
                at.tb_next = at.tb_next.tb_next
            at = at.tb_next
        error = error.__cause__ or error.__context__


def run(channel):
    # type: (int) -> None
    """Serve one context until the runtime closes the channel."""
    global _channel, _main, _pid
    own = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, FIRST_CHANNEL_DESCRIPTOR)
    os.close(channel)
    _channel = frames.Channel(socket.socket(fileno=own))
    _main, _pid = _thread.get_ident(), os.getpid()
    signal.signal(signal.SIGINT, on_interrupt)
    start_afresh()
    _channel.send([frames.frame(frames.READY)])
    while (request := _channel.receive()) is not None:
        run_cell(request)
        if os.getpid() != _pid:
            os._exit(0)  # the code has forked, and this is the copy: the context is the other one
    os._exit(0)


def on_interrupt(number, frame):
    # type: (int, object) -> None
    """KeyboardInterrupt for the cell that runs."""
    global _is_interrupted
    if _is_sending:
        _is_interrupted = True
    elif _is_active:
        raise KeyboardInterrupt


def start_afresh():
    # type: () -> None
    """What must differ from context to context, and what a context cannot have."""
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    builtins.input = no_input
    own = {os.path.dirname(os.path.abspath(sys.modules[name].__file__)) for name in OWN_MODULES if name in sys.modules}
    others = [path for path in sys.path if path not in own]
    sys.path[:] = ["", user_site()]
    site.addsitedir(user_site())
    sys.path += [path for path in others if path not in sys.path]
    sys.argv = [""]
    for name in OWN_MODULES:
        sys.modules.pop(name, None)


def user_site():
    # type: () -> str
    """Where pip installs for the sandbox's user."""
    return os.path.expanduser("~/.local/lib/python%d.%d/site-packages" % sys.version_info[:2])


def no_input(prompt=""):
    # type: (str) -> str
    """There is nobody to ask."""
    raise EOFError("input() is not available in a code context: pass the value in the code")


def run_cell(request):
    # type: (dict[str, object]) -> None
    """Run one cell and report its end, whatever it did."""
    global _is_active
    _shell.failure = None
    count = _shell.execution_count
    try:
        try:
            _is_active = True
            execute(request["code"])
        finally:
            _is_active = False
    except BaseException as error:
        _is_active = False
        _shell.failure = failure_of(error)
    if os.getpid() == _pid:
        finish(count)


def execute(code):
    # type: (str) -> None
    """The cell, then the figures that it has left open: they are its results."""
    outcome = _shell.run_cell(code, store_history=True, silent=False)
    if not outcome.success and _shell.failure is None:
        _shell.failure = failure_of(outcome.error_before_exec or outcome.error_in_exec)
    figures = sys.modules.get("_cove_figures")
    if figures is not None:
        figures.show()


def failure_of(error):
    # type: (BaseException) -> dict[str, object]
    """An error that the shell has not shown."""
    name, message = type(error).__name__, message_of(error)
    return {"name": name, "message": message, "traceback": "%s: %s" % (name, message) if message else name}


def message_of(error):
    # type: (BaseException) -> str
    """Its text, also when its own __str__ fails."""
    try:
        return str(error)
    except Exception as failure:
        return "<no message: __str__ raised %s>" % type(failure).__name__


def finish(count):
    # type: (int) -> None
    """Everything printed is in the pipes before the end is told."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if _shell.failure is not None:
        texts = {name: text[:MOST_MESSAGE_CHARACTERS] for name, text in _shell.failure.items()}
        _channel.send(frames.message(frames.ERROR, texts, texts != _shell.failure))
    _channel.send([frames.frame(frames.DONE, b"%d" % count)])


def close_figure(result):
    # type: (object) -> None
    """A figure that was the result of a cell is not shown once more at its end."""
    figures = sys.modules.get("_cove_figures")
    if figures is not None and isinstance(result, figures.Figure):
        figures.pyplot.close(result)


def send_bundle(kind, data):
    # type: (bytes, dict[str, object]) -> None
    """Send what an object looks like; bytes travel as base64. What was forked off has nothing to say."""
    global _is_sending, _is_interrupted
    if os.getpid() != _pid:
        return
    kept, is_cut = frames.bounded({mime: as_text(value) for mime, value in data.items()})
    message = frames.message(kind, kept, is_cut)
    if _thread.get_ident() != _main:
        _channel.send(message)
        return
    _is_sending = True
    try:
        _channel.send(message)
    finally:
        _is_sending = False
    if _is_interrupted:
        _is_interrupted = False
        raise KeyboardInterrupt


def as_text(value):
    # type: (object) -> object
    """Bytes as base64, everything else as it is."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
