"""A root file system with the host's own Python and nothing else: no shell, and no program but that."""

import subprocess
import tarfile
from pathlib import Path

import pytest

PYTHON = Path("/usr/bin/python3").resolve()
STANDARD = Path("/usr/lib") / PYTHON.name
_LEFT_OUT = ("__pycache__", "test", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "config-")

needs_system_python = pytest.mark.skipif(
    not STANDARD.is_dir() or PYTHON.parent != Path("/usr/bin"), reason="needs the system's Python below /usr"
)


def write_python_root(path: Path) -> Path:
    """Write the tar archive of it."""
    with tarfile.open(path, "w") as archive:
        archive.add(PYTHON, f"usr/bin/{PYTHON.name}")
        _link(archive, "usr/bin/python3", PYTHON.name)
        archive.add(STANDARD, str(STANDARD)[1:], filter=_wanted)
        for library in _libraries():
            archive.add(Path(library).resolve(), library[1:])
    return path


def _libraries() -> set[str]:
    modules = [str(each) for each in (STANDARD / "lib-dynload").glob("*.so")]
    said = subprocess.run(["ldd", str(PYTHON), *modules], capture_output=True, text=True, check=True).stdout
    words = (word for line in said.splitlines() if not line.endswith(":") for word in line.split())
    return {word for word in words if word.startswith("/")}


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).name.startswith(_LEFT_OUT) else member


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, target
    archive.addfile(link)
