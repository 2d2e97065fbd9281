"""OCI and Docker archives: documents by digests, files of the archive alone, or an image that is refused."""

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cove.errors import ImageInvalid
from cove.images.manifest import MOST_LAYERS, chain_ids, digest_of
from cove.images.sources import Source, open_archive_source, open_source
from fuzz.trees import repair

MOST_BYTES = 12 << 10
_LAYOUT = ("index.json", "manifest.json", "oci-layout", "config.json", "layer.tar", "a/b")
_SAVED = ("manifest.json", "config.json", "layer.tar", "a/b")


def check(data: bytes) -> None:
    """The first byte chooses: an archive as it is, or documents from which one, or a directory, is made."""
    chosen, content = data[:1] or b"\0", data[1:]
    if chosen == b"\0":
        _check_archive(repair(content))
        return
    files = _files(content, _LAYOUT if chosen in (b"\1", b"\2") else _SAVED)
    if chosen in (b"\1", b"\3"):
        _check_archive(_archive(files))
    else:
        _check_directory(files)


def _files(content: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """Documents with NULs between them; `@3@` in one of them stands for the digest of the third from the end."""
    pieces = content.split(b"\0")[:8]
    digests: list[bytes] = []
    files: dict[str, bytes] = {}
    for number, piece in enumerate(reversed(pieces)):
        document = piece
        for at, known in enumerate(digests):
            document = document.replace(b"@%d@" % at, known)
        digest = digest_of(document)
        digests.append(digest.encode())
        files["blobs/" + digest.replace(":", "/")] = document
        files[names[(len(pieces) - 1 - number) % len(names)]] = document
    return files


def _archive(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return made.getvalue()


def _check_archive(content: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        try:
            with open_archive_source(file, "it") as source:
                _check_source(source, content)
        except ImageInvalid:
            return


def _check_directory(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        place = Path(name)
        secret = os.urandom(8)
        (place / "secret").write_bytes(secret)
        top = place / "image"
        top.mkdir()
        for each, content in files.items():
            (top / each).parent.mkdir(parents=True, exist_ok=True)
            (top / each).write_bytes(content)
        try:
            with open_source(top, place) as source:
                _check_source(source, b"".join(files.values()), secret)
        except ImageInvalid:
            return


def _check_source(source: Source, content: bytes, secret: bytes | None = None) -> None:
    """Every byte that an image is made of is the archive's own."""
    image = source.image
    assert image.config is None or image.config_bytes in content
    if image.config is not None:
        assert len(image.layers) == len(image.config.rootfs.diff_ids) <= MOST_LAYERS
        assert len(chain_ids(image.config.rootfs.diff_ids)) == len(image.layers)
    for layer in image.layers:
        try:
            with source.open_layer(layer) as blob:
                data = blob.read(1 << 16)
        except ImageInvalid:
            continue
        if image.config is not None:
            assert data in content, "bytes that are not the image's own"
        assert secret is None or secret not in data


def seeds() -> Iterator[bytes]:
    """An OCI layout and what `docker save` writes, as archives and directories; layers that lead out."""
    config = (
        b'{"rootfs":{"diff_ids":["@0@"]},"config":{"Env":["A=b"],"ExposedPorts":{"80/tcp":{}}},"architecture":"amd64"}'
    )
    manifest = b'{"config":{"digest":"@1@","size":1},"layers":[{"digest":"@0@","size":5}]}'
    index = b'{"manifests":[{"digest":"@2@","size":1,"annotations":{"org.opencontainers.image.ref.name":"a"}}]}'
    for first in (b"\1", b"\2"):
        yield first + b"\0".join((index, manifest, config, b"layer"))
        yield first + b'{"manifests":[{"digest":"@0@","size":1}]}\0{"manifests":[{"digest":"@0@","size":1}]}'
    for first in (b"\3", b"\4"):
        saved = b'[{"Config":"config.json","Layers":["layer.tar"],"RepoTags":["a:b"]}]'
        yield first + b"\0".join((saved, config, b"layer"))
        for name in (b"../secret", b"/etc/hostname", b"a\\u0000b", b"blobs"):
            yield first + b"\0".join((b'[{"Config":"config.json","Layers":["%b"]}]' % name, config, b"layer"))
            yield first + b"\0".join((b'[{"Config":"%b","Layers":["layer.tar"]}]' % name, config, b"layer"))
    nested = b'{"rootfs":{"diff_ids":[]},"x":' + b"[" * 1500 + b"]" * 1500 + b"}"
    yield b"\3" + b"\0".join((b'[{"Config":"config.json","Layers":[]}]', nested))
    yield b"\0" + _archive({"index.json": b'{"manifests":[]}', "manifest.json": b"[]"})
