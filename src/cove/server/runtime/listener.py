"""Unix sockets that only this user can connect to."""

import os
import socket
from pathlib import Path

_BACKLOG = 1024


def listen(path: Path, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Listen at this path, which is free."""
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    return listener
