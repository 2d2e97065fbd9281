"""A Debian root file system from the packages that this machine has installed: no network, and no bootstrap."""

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

STATUS = Path("/var/lib/dpkg/status")
# What maintainer scripts have made, and no package lists.
_MADE = ("etc/passwd", "etc/group", "etc/ld.so.cache", "etc/nsswitch.conf", "etc/alternatives")
_LEFT_OUT = ("usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/zoneinfo/")
_MERGED = ("bin", "sbin", "lib", "lib64")
_FOLDERS = ("dev", "home", "proc", "root", "run", "srv", "sys", "tmp", "var/tmp", "var/lib/dpkg/updates")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")

needs_debian = pytest.mark.skipif(
    not STATUS.exists() or shutil.which("dpkg-query") is None or not os.path.islink("/bin"),
    reason="needs a Debian whose /usr is merged",
)


def write_debian_root(path: Path, *packages: str) -> Path:
    """Write the tar archive of a root with all essential packages, these, and what they need."""
    stanzas = _stanzas()
    chosen = _with_dependencies(stanzas, {*packages, *(name for name, each in stanzas.items() if "Essential" in each)})
    with tarfile.open(path, "w") as archive:
        for name in _MERGED:
            _add(archive, tarfile.TarInfo(name), tarfile.SYMTYPE, f"usr/{name}")
        for name in _FOLDERS:
            _add(archive, tarfile.TarInfo(name), tarfile.DIRTYPE)
        for name in (*_files(chosen), *_MADE, *_info(chosen)):
            archive.add(f"/{name}", name, recursive=name in _MADE, filter=_readable)
        _write_status(archive, path.with_suffix(".status"), [stanzas[name] for name in sorted(chosen)])
    return path


def _add(archive: tarfile.TarFile, member: tarfile.TarInfo, kind: bytes, target: str = "") -> None:
    member.type, member.linkname, member.mode = kind, target, 0o755
    archive.addfile(member)


def _stanzas() -> dict[str, dict[str, str]]:
    """Return the fields of every package that is installed."""
    found = {}
    for text in STATUS.read_text().split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): *(.*(?:\n .*)*)", text, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = fields
    return found


def _with_dependencies(stanzas: dict[str, dict[str, str]], wanted: set[str]) -> set[str]:
    chosen: set[str] = set()
    left = list(wanted)
    while left:
        name = left.pop()
        if name in chosen or name not in stanzas:
            continue
        chosen.add(name)
        needed = ",".join(stanzas[name].get(field, "") for field in ("Depends", "Pre-Depends"))
        left += _NAME.findall(re.sub(r"\([^)]*\)|:\w+", "", needed))
    return chosen


def _files(packages: set[str]) -> Iterator[str]:
    """Give what the packages have installed, each once: directories, files and links, but no documents."""
    listed = subprocess.run(["dpkg-query", "-L", *sorted(packages)], capture_output=True, text=True, check=True).stdout
    for line in sorted(
        {os.path.realpath(os.path.dirname(each)) + "/" + os.path.basename(each) for each in listed.split("\n")}
    ):
        name = line.lstrip("/")
        if name.partition("/")[0] not in ("", *_MERGED) and not name.startswith(_LEFT_OUT) and os.path.lexists(line):
            yield name


def _info(packages: set[str]) -> list[str]:
    """Return what dpkg knows about the packages: lists, scripts, sums."""
    found = STATUS.with_name("info").iterdir()
    return [str(path)[1:] for path in found if re.split(r"[:.]", path.name)[0] in {"format", *packages}]


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    path = f"/{member.name}"
    return member if os.path.islink(path) or os.access(path, os.R_OK) else None


def _write_status(archive: tarfile.TarFile, path: Path, stanzas: list[dict[str, str]]) -> None:
    path.write_text("".join("\n".join(f"{key}: {value}" for key, value in each.items()) + "\n\n" for each in stanzas))
    archive.add(path, "var/lib/dpkg/status")
