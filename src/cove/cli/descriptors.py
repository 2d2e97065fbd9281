"""Standard descriptors (0, 1, 2): open them at the start, flush them at the end, and exit with the right code."""

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

STDIN, STDOUT, STDERR = 0, 1, 2
# Exit code that a shell reports for a program that wrote to a pipe nobody reads.
BROKEN_PIPE = 128 + signal.SIGPIPE
# And for one that Ctrl-C has ended.
INTERRUPTED = 128 + signal.SIGINT
# Exit code of docker and timeout(1) for their own failures: a command's own is never mistaken for ours.
FAILURE = 125
DISK_FULL = "No space left on device: what the output goes to, or the state directory, is full"


def fill_closed_descriptors() -> None:
    """Open what the caller closed (`>&-`): otherwise a socket of ours could become our standard output."""
    for descriptor in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one


def leave(code: int) -> NoReturn:
    """End this process without waiting for a thread that waits for a terminal or a pipe."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # None when it was closed before Python started
                stream.flush()
        except OSError as error:
            if error.errno == errno.ENOSPC:  # otherwise nobody reads any more, or the terminal is gone
                say(DISK_FULL)
                code = code or FAILURE
    os._exit(code)


def say(message: str) -> None:
    """Print a line from Cove itself on standard error, apart from what commands print."""
    with suppress(OSError):  # the terminal is gone
        print("cove:", printable(" ".join(message.removeprefix("cove: ").split())), file=sys.stderr, flush=True)


def show(line: str) -> None:
    """Print a line on standard output, at once."""
    print(printable(line), flush=True)


def printable(text: str) -> str:
    """Escape what would move the cursor, change colours or fill the clipboard of a terminal: names come from inside."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
