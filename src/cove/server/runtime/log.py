"""The log file of a runtime, at its sandbox's place, bounded in size."""

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

_NAME = "runtime.log"
_MOST_BYTES = 1 << 20


class _PrivateLog(RotatingFileHandler):
    """The file that follows a full one is nobody else's to read either."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def log_to(place: Path) -> None:
    """Redirect standard error and all log messages to the log of that place."""
    path = place / _NAME
    descriptor = _open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    handler = _PrivateLog(path, maxBytes=_MOST_BYTES, backupCount=1)
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True)
