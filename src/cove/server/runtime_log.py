"""Where a runtime complains: a file at its sandbox's place that does not grow without end."""

import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

_NAME = "runtime.log"
_MOST_BYTES = 1 << 20


def log_to(place: Path) -> None:
    """From here on standard error and all log messages go to the log of that place."""
    path = place / _NAME
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    handler = RotatingFileHandler(path, maxBytes=_MOST_BYTES, backupCount=1)
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(name)s %(levelname)s %(message)s", force=True)
