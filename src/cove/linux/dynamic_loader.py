"""Run a program of the host beside the libraries of another system: by the host's own loader. ld.so(8), elf(5)."""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_USR = "/usr/"
_PT_INTERP = 3


@dataclass(frozen=True, slots=True)
class Loader:
    """The dynamic loader of the host and where its libraries are, both below /usr."""

    path: str
    libraries: tuple[str, ...]

    def command(self, program: str, *, usr: str, name: str | None = None) -> tuple[str, ...]:
        """Return the words that run a program of the host's /usr, which is found at `usr`, and is called `name`."""
        moved = _moved(os.path.realpath(program), usr)
        libraries = ":".join(_moved(path, usr) for path in self.libraries)
        called = _moved(program, usr) if name is None else name
        return (_moved(self.path, usr), "--library-path", libraries, "--argv0", called, moved)


def _moved(path: str, usr: str) -> str:
    return f"{usr}/{path.removeprefix(_USR)}" if path.startswith(_USR) else path


def find_loader(program: str) -> Loader | None:
    """Find the loader that a program names; None for a static one, or where libraries are not all below /usr."""
    try:
        with open(program, "rb") as file:
            interpreter = _read_interpreter(file.read(4096))
    except OSError:
        return None
    real = os.path.realpath(interpreter) if interpreter else ""
    if not real.startswith(_USR):
        return None
    folders = (os.path.dirname(real), *(f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib"))
    return Loader(real, tuple(dict.fromkeys(path for path in folders if os.path.isdir(path))))


def _read_interpreter(head: bytes) -> str | None:
    """Read PT_INTERP of a 64-bit little-endian program."""
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    for number in range(count):
        at = table + number * size
        if at + 56 > len(head):
            return None
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, at)
        if kind == _PT_INTERP:
            return os.fsdecode(head[offset : offset + length].rstrip(b"\0"))
    return None


def loader_words(loader: Loader | None, program: str, usr: str | None, name: str | None = None) -> Sequence[str]:
    """Return the words that run a program of the host: by its loader where the host's /usr is at `usr`."""
    if usr is None or loader is None:
        return (program,)
    return loader.command(program, usr=usr, name=name)
