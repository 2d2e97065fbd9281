"""Make the root file system that kernels boot with: packages of Debian, Cove's wheel, and what is run inside."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from kernels.apt import Mirrors, sources

_PACKAGES = (
    *("apparmor", "bubblewrap", "busybox-static", "ca-certificates", "curl", "e2fsprogs", "git", "iproute2"),
    *("kmod", "procps", "python3", "python3-venv", "uidmap"),
)
_PROJECT = Path(__file__).parent.parent
_INSIDE = Path(__file__).parent / "inside"
_COVE = "/opt/cove"
_CODE = "/opt/code"
_IMAGE_BYTES = 4 << 30


def make_root(cache: Path, mirrors: Mirrors, suite: str) -> Path:
    """Return an ext4 image with the user space of a release of Debian and Cove as it is in this tree."""
    tree = cache / f"root-{suite}"
    if not (tree / "etc/debian_version").exists():
        _bootstrap(tree, mirrors, suite)
    _install(cache, tree)
    target = tree / "opt/kernels"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(_INSIDE, target)
    image = cache / f"root-{suite}.ext4"
    image.unlink(missing_ok=True)
    _run(["mke2fs", "-q", "-t", "ext4", "-d", str(tree), str(image), f"{_IMAGE_BYTES >> 10}k"])
    return image


def _bootstrap(tree: Path, mirrors: Mirrors, suite: str) -> None:
    building = tree.with_name(f"{tree.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--architectures=amd64"]
    _run([*command, f"--include={','.join(_PACKAGES)}", suite, str(building), *sources(mirrors, "debian", suite)])
    _chroot(building, "useradd", "--create-home", "--shell", "/bin/bash", "cove")
    for environment in (_COVE, _CODE):
        _chroot(building, "python3", "-m", "venv", environment)
    building.rename(tree)


def _install(cache: Path, tree: Path) -> None:
    """Install Cove from its wheel, its dependencies and IPython from wheels that were fetched outside."""
    wheels = tree / "opt/wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    wheel = _build_wheel(cache / "wheel")
    version = _chroot(tree, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    kept = cache / f"wheels-{version}-{_digest(_PROJECT / 'pyproject.toml')}"
    if not kept.exists():
        building = kept.with_name(f"{kept.name}.new")
        _download(building, version, str(wheel), "ipython")
        building.rename(kept)
    shutil.copytree(kept, wheels)
    shutil.copy(wheel, wheels)
    offline = ["-m", "pip", "install", "--quiet", "--no-index", "--find-links", "/opt/wheels"]
    _chroot(tree, f"{_COVE}/bin/python3", *offline, "cove")
    _chroot(tree, f"{_COVE}/bin/python3", *offline, "--force-reinstall", "--no-deps", f"/opt/wheels/{wheel.name}")
    _chroot(tree, f"{_CODE}/bin/python3", *offline, "ipython")
    shutil.rmtree(wheels)


def _build_wheel(target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(_PROJECT)])
    (wheel,) = target.glob("cove-*.whl")
    return wheel


def _download(target: Path, version: str, *what: str) -> None:
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 28, 34)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={version}"]
    _run([*command, *platforms, "--platform=manylinux2014_x86_64", "--dest", str(target), *what])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _chroot(tree: Path, *command: str) -> str:
    return _run(["chroot", str(tree), *command])


def _run(command: list[str]) -> str:
    end = subprocess.run(command, check=False, capture_output=True, text=True)
    if end.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {end.returncode}: {end.stderr[-2000:]}")
    return end.stdout
