"""The executor of one Python context: IPython's shell (executor/context_shell), told over a channel what to run.

Text goes to the real standard output and error, so that what child processes print is seen too. Results,
displays and errors go to the channel.
"""

from __future__ import annotations

import _thread
import base64
import builtins
import contextlib
import fcntl
import gc
import os
import signal
import site
import socket
import sys
import termios
from time import sleep

from cove.executor import channel as frames
from cove.executor import context_shell, finder, forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Out of the way of what user code opens and closes.
FIRST_CHANNEL_DESCRIPTOR = 200
# Imported before contexts are forked in a sandbox that has used one of them, and otherwise when code does.
PACKAGES = ("numpy", "pandas", "matplotlib.pyplot")
FIGURES = finder.FIGURES

MOST_MESSAGE_CHARACTERS = 1 << 20
MOST_LOOKS = 500

_shell: context_shell.ContextShell
_channel: frames.Channel
_main = 0
_pid = 0
# An interruption outside a cell is for nobody; one that comes while a frame is being sent waits for its end.
_is_active = False
_is_sending = False
_is_interrupted = False
# The runtime knows that the packages are in use.
_has_packages = False


def warm_up(has_packages: bool) -> None:
    """Make the shell that every context gets a copy of; import what is installed of the usual packages if told to."""
    gc.disable()
    global _shell
    _shell = context_shell.make_shell(send_bundle, run.__code__.co_filename)
    _shell.run_cell("None", silent=True)  # imports what the first cell needs
    sys.meta_path.insert(0, finder.Finder(give_display))
    for name in (*PACKAGES, FIGURES) if has_packages else ():
        with contextlib.suppress(ImportError):
            __import__(name)
    # An import remembers that a directory is not there; pip looks whose the other is.
    for path in (user_site(), os.path.expanduser("~/.cache")):
        with contextlib.suppress(OSError):  # a user without a home that it can write
            os.makedirs(path, exist_ok=True)
    gc.freeze()  # what is old stays shared: the collector would write to it
    gc.enable()


def give_display(figures: Any) -> None:
    """Give user code a `display`. It cannot import this module, which a context does not know."""
    figures.send_display = lambda bundle: send_bundle(frames.DISPLAY, bundle)


def run(channel: int) -> None:
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
        if request["kind"] == "fork":
            fork(request)
        else:
            run_cell(request)
        if os.getpid() != _pid:
            os._exit(0)  # the code has forked, and this is the copy: the context is the other one
    os._exit(0)


def fork(request: dict[str, str]) -> None:
    """Fork a copy of this context, which goes on from here with a channel of its own."""
    streams, _channel.descriptors = _channel.descriptors, []
    flush()
    middle = 0
    try:
        threads = [] if request["force"] else forking.threads_in_the_way()
        if threads:
            answer = frames.frame(frames.REFUSED, b"\0".join([b"threads", *threads]))
        else:
            pid, middle = forking.fork_twice()
            answer = frames.frame(frames.FORKED, b"%d" % pid)
    except forking.Copy:
        become_copy(streams, int(request["label"]))
        return
    except OSError as error:
        answer = frames.frame(frames.REFUSED, b"error\0%d" % (error.errno or 0))
    for descriptor in streams:
        os.close(descriptor)
    _channel.send([answer])
    if middle:
        forking.reap(middle)


def become_copy(streams: list[int], label: int) -> None:
    """Serve a new context from now on."""
    global _channel, _main, _pid
    own = forking.leave_parent(_channel.detach(), streams, label, FIRST_CHANNEL_DESCRIPTOR)
    _channel = frames.Channel(socket.socket(fileno=own))
    _main, _pid = _thread.get_ident(), os.getpid()
    _channel.send([frames.frame(frames.READY)])
    reseed()  # before it takes any code, while the runtime hears that it can


def on_interrupt(number: int, frame: object) -> None:
    """KeyboardInterrupt for the cell that runs."""
    global _is_interrupted
    if _is_sending:
        _is_interrupted = True
    elif _is_active:
        raise KeyboardInterrupt


def start_afresh() -> None:
    """Reset what must differ from context to context, and what a context cannot have."""
    global _has_packages
    _has_packages = PACKAGES[0] in sys.modules
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    reseed()
    builtins.input = no_input
    others = list(sys.path)
    sys.path[:] = ["", user_site()]
    site.addsitedir(user_site())
    sys.path += [path for path in others if path not in sys.path]
    sys.argv = [""]
    for name in [name for name in sys.modules if name.split(".")[0] == "cove"]:
        del sys.modules[name]  # the user's code may have a Cove of its own


def reseed() -> None:
    """Give the shared generators of `random` and `numpy.random` a state that no other context has."""
    with contextlib.suppress(Exception):  # the cell may have put anything in their place
        if "random" in sys.modules:
            sys.modules["random"].seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()


def user_site() -> str:
    """Return where pip installs for the sandbox's user."""
    return os.path.expanduser("~/.local/lib/python%d.%d/site-packages" % sys.version_info[:2])


def no_input(prompt: object = "") -> str:
    """Refuse input: there is nobody to ask."""
    raise EOFError("input() is not available in a code context: pass the value in the code")


def run_cell(request: dict[str, str]) -> None:
    """Run one cell and report its end, whatever it did."""
    global _is_active
    _shell.failure = None
    count = _shell.execution_count
    try:
        try:
            if "cwd" in request:
                with contextlib.suppress(OSError):
                    os.chdir(request["cwd"])
            _is_active = True
            execute(request["code"])
        finally:
            _is_active = False
    except BaseException as error:  # noqa: BLE001  # whatever code raises is its result
        _is_active = False
        _shell.failure = context_shell.failure_of(error)
    if os.getpid() == _pid:
        finish(count)


def execute(code: str) -> None:
    """The cell, then the figures that it has left open: they are its results."""
    outcome = _shell.run_cell(code, store_history=True, silent=False)
    if not outcome.success and _shell.failure is None:
        _shell.failure = context_shell.failure_of(outcome.error_before_exec or outcome.error_in_exec)
    figures = sys.modules.get(FIGURES)
    if figures is not None:
        figures.show()


def finish(count: int) -> None:
    """End a run: everything printed is in the pipes before the end is told."""
    flush()
    if _shell.failure is not None:
        texts = {name: text[:MOST_MESSAGE_CHARACTERS] for name, text in _shell.failure.items()}
        _channel.send(frames.message(frames.ERROR, texts, texts != _shell.failure))
    _channel.send([*packages_frame(), frames.frame(frames.DONE, b"%d" % count)])


def flush() -> None:
    """Write what is printed into the pipes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the cell may have put anything in its place
            stream.flush()


def await_readers() -> None:
    """Wait until what is printed was read, but not for long: what is shown next comes after it."""
    flush()
    for _ in range(MOST_LOOKS):
        if not is_unread(1) and not is_unread(2):
            return
        sleep(0.0002)


def is_unread(stream: int) -> bool:
    """Return whether the pipe has bytes: FIONREAD, ioctl_pipe(2). The cell may have put anything in its place."""
    try:
        return any(fcntl.ioctl(stream, termios.FIONREAD, bytes(4)))
    except OSError:
        return False


def packages_frame() -> list[bytes]:
    """Say once that this context has imported one of the usual packages: the next ones will want them too."""
    global _has_packages
    if _has_packages or not any(name in sys.modules for name in PACKAGES):
        return []
    _has_packages = True
    return [frames.frame(frames.PACKAGES)]


def send_bundle(kind: bytes, data: dict[str, object]) -> None:
    """Send what an object looks like; bytes travel as base64. What was forked off has nothing to say."""
    global _is_sending, _is_interrupted
    if os.getpid() != _pid:
        return
    kept, is_cut = frames.bounded({mime: as_text(value) for mime, value in data.items()})
    message = frames.message(kind, kept, is_cut)
    if _thread.get_ident() != _main:
        _channel.send(message)
        return
    if kind == frames.DISPLAY:
        await_readers()
    _is_sending = True
    try:
        _channel.send(message)
    finally:
        _is_sending = False
    if _is_interrupted:
        _is_interrupted = False
        raise KeyboardInterrupt


def as_text(value: object) -> object:
    """Bytes as base64, everything else as it is."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
