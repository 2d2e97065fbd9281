"""Unpack a kernel from its packages, and make the initial file system that finds the root."""

import gzip
import lzma
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernels.apt import Apt, Mirrors, NotObtainable, sources
from kernels.cases import Release

_INIT = Path(__file__).parent / "inside" / "initramfs.sh"
# What the root is found with comes first; a kernel that has one of these built in has no such module.
_MODULES = (
    "crc32c_generic",
    "virtio_pci",
    "virtio_blk",
    "ext4",
    "overlay",
    "loop",
    "fuse",
    "veth",
    "tun",
    "unix",
    "inet_diag",
)
_KERNEL_PACKAGES = re.compile(r"linux-(image|binary|modules)-(unsigned-)?\d")


@dataclass(frozen=True, slots=True)
class BootFiles:
    """What QEMU boots: a kernel, its version, and an initial file system with its modules."""

    version: str
    kernel: Path
    initial: Path


def fetch_kernel(cache: Path, mirrors: Mirrors, release: Release) -> BootFiles:
    """Fetch the newest kernel of a release. Raises NotObtainable."""
    lines = sources(mirrors, release.distribution, release.suite)
    apt = Apt(cache / "apt" / release.suite, lines, release.suite)
    apt.update()
    names = [name for name in apt.depends(release.package) if _KERNEL_PACKAGES.match(name)]
    files = apt.download(names, cache / "packages")
    tree = cache / f"kernel-{release.suite}-{'-'.join(sorted(file.stem for file in files))}"
    if not tree.exists():
        building = tree.with_name(f"{tree.name}.new")
        for file in files:
            _run("dpkg-deb", "--extract", str(file), str(building))
        building.rename(tree)
    kernel, version = find_kernel(tree)
    initial = cache / f"initial-{version}.cpio"
    initial.write_bytes(make_initial(tree, version))
    return BootFiles(version, kernel, initial)


def find_kernel(tree: Path) -> tuple[Path, str]:
    """Find the kernel in its unpacked packages, and its version: newer packages have it beside its modules."""
    for kernel in (*tree.glob("boot/vmlinuz-*"), *tree.glob("usr/lib/modules/*/vmlinuz")):
        return kernel, kernel.name.removeprefix("vmlinuz-") if kernel.parent.name == "boot" else kernel.parent.name
    raise NotObtainable(f"there is no kernel in {tree}")


def make_initial(tree: Path, version: str) -> bytes:
    """Return a cpio archive: busybox, the modules in the order in which they are loaded, and the script."""
    base = next(path for path in (tree / "lib/modules", tree / "usr/lib/modules") if path.exists()) / version
    wanted = list(_with_dependencies(base, _MODULES))
    members: list[tuple[str, int, bytes]] = [
        (name, 0o040755, b"") for name in ("bin", "proc", "sys", "dev", "root", "modules")
    ]
    members += [
        ("bin/busybox", 0o100755, Path("/bin/busybox").read_bytes()),
        ("init", 0o100755, _INIT.read_bytes()),
        ("order", 0o100644, "".join(f"{_file_name(path)}\n" for path in wanted).encode()),
    ]
    members += [(f"modules/{_file_name(path)}", 0o100644, _unpacked(path)) for path in wanted]
    return gzip.compress(_cpio(members), compresslevel=1)


def _with_dependencies(base: Path, names: Iterable[str]) -> Iterable[Path]:
    """Yield the files of modules, each after those that it needs. Packages come without modules.dep: depmod(8)."""
    files = {_name(path): path for path in base.rglob("*.ko*")}
    done: set[str] = set()

    def visit(name: str) -> Iterable[Path]:
        if name in done or name not in files:
            return
        done.add(name)
        for needed in _needs(files[name]):
            yield from visit(needed)
        yield files[name]

    for name in names:
        yield from visit(name)


def _needs(path: Path) -> list[str]:
    """Return the modules that one names in its own section: the needed, and the soft dependencies before it."""
    content = _unpacked(path)
    hard = re.search(rb"\0depends=([^\0]*)\0", content)
    soft = re.findall(rb"\0softdep=pre: ([^\0]*)\0", content)
    names = [*(hard[1].decode().split(",") if hard else []), *(name for each in soft for name in each.decode().split())]
    return [name.replace("-", "_") for name in names if name]


def _name(path: Path) -> str:
    return path.name.split(".ko")[0].replace("-", "_")


def _file_name(path: Path) -> str:
    return f"{_name(path)}.ko"


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    match path.suffix:
        case ".xz":
            return lzma.decompress(content)
        case ".zst":
            return subprocess.run(["zstd", "-dc"], input=content, check=True, capture_output=True).stdout
        case _:
            return content


def _cpio(members: Iterable[tuple[str, int, bytes]]) -> bytes:
    """Pack in the form that the kernel reads: "newc", cpio(5)."""
    packed = bytearray()
    for number, (name, mode, content) in enumerate([*members, ("TRAILER!!!", 0, b"")], start=1):
        named = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(named), 0)
        packed += b"070701" + b"".join(b"%08X" % field for field in fields) + named
        packed += bytes(-len(packed) % 4)
        packed += content
        packed += bytes(-len(packed) % 4)
    return bytes(packed)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
