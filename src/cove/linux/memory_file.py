"""Anonymous, sealed files in memory: memfd_create(2)."""

import fcntl
import os
from io import FileIO

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def sealed_file(data: bytes) -> FileIO:
    """A file with this content that nobody can change, positioned at its start."""
    file = FileIO(os.memfd_create("cove", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    try:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        file.seek(0)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        file.close()
        raise
    return file
