"""Tiny package registries, as files by path: an index for pip, a registry for npm, a repository for apt."""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

Site = dict[str, bytes]


def pip_index() -> Site:
    """An index with one package, `tiny`, whose module says `hello from tiny`."""
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": 'print("hello from tiny")\n',
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    name = "tiny-1.0-py3-none-any.whl"
    digest = hashlib.sha256(wheel.getvalue()).hexdigest()
    page = f'<!DOCTYPE html><html><body><a href="/files/{name}#sha256={digest}">{name}</a></body></html>'
    return {"/simple/tiny/": page.encode(), f"/files/{name}": wheel.getvalue()}


def npm_registry(url: str) -> Site:
    """A registry at that address with one package, `tiny`, whose module is `hello from tiny`."""
    manifest = {"name": "tiny", "version": "1.0.0", "main": "index.js"}
    files = {"package.json": json.dumps(manifest), "index.js": 'module.exports = "hello from tiny";\n'}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    digest = base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    dist = {"tarball": f"{url}/tiny/-/tiny-1.0.0.tgz", "integrity": f"sha512-{digest}"}
    document = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**manifest, "dist": dist}}}
    return {"/tiny": json.dumps(document).encode(), "/tiny/-/tiny-1.0.0.tgz": packed.getvalue()}


def apt_repository(directory: Path) -> Site:
    """A flat repository with one package, `tiny`, which holds one file."""
    tree = directory / "tiny"
    (tree / "DEBIAN").mkdir(parents=True)
    control = "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <nobody@example>\nDescription: tiny\n"
    (tree / "DEBIAN/control").write_text(control)
    (tree / "usr/share/tiny").mkdir(parents=True)
    (tree / "usr/share/tiny/greeting").write_text("hello from tiny\n")
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, directory / "tiny.deb"], check=True, stdout=-3)
    package = (directory / "tiny.deb").read_bytes()
    facts = f"Filename: ./tiny.deb\nSize: {len(package)}\nSHA256: {hashlib.sha256(package).hexdigest()}\n"
    return {"/./Packages": (control + facts + "\n").encode(), "/./tiny.deb": package}
