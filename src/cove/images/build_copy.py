"""Make the layers of COPY, ADD and WORKDIR: without a sandbox, by Cove itself. Blocks."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cove.archive import tar
from cove.archive.remove_tree import remove_tree
from cove.archive.tar import Refused
from cove.errors import ValidationFailed
from cove.images.build_source import BuildSource, Check, Named
from cove.images.dockerfile import Copy
from cove.images.dockerignore import MOST_BYTES as MOST_IGNORE_BYTES
from cove.images.dockerignore import Ignore
from cove.images.image_view import ImageView, opened_image
from cove.images.layer_stream import MOST_BYTES, LayerStream, Told
from cove.images.layer_unpack import unpack_layer
from cove.images.merged_view import OPEN_DIRECTORY, MergedView
from cove.images.new_layer import NewLayer, new_layer
from cove.images.users import find_image_user
from cove.layers.record import Owners
from cove.layers.store import LayerStore

_MAGIC_BYTES = 8
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
_UNKNOWN = {b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}


@contextmanager
def opened_context(directory: str) -> Iterator[BuildSource]:
    """Open the directory of a build, with what its `.dockerignore` leaves."""
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        view = MergedView((top,))
        yield BuildSource(view, Ignore(view.read("/.dockerignore", MOST_IGNORE_BYTES + 1) or b""))
    finally:
        os.close(top)


@dataclass(frozen=True, slots=True)
class LayerMaker:
    """Makes one layer in a new directory, on the layers `below`, with files of `owners`."""

    below: Sequence[str]
    layers: LayerStore
    owners: Owners
    check: Check
    most_bytes: int | None = None

    def copy(self, building: Path, step: Copy, source: BuildSource, target: str) -> Owners:
        """Copy what COPY or ADD names; of ADD, archives are unpacked."""
        found = source.find_all(step.sources, self.check)
        archives = [named for named in found if step.unpacks and _is_archive(source, named)]
        plain = [named for named in found if named not in archives]
        with self._new_layer(building) as (image, layer):
            owner = _owner(image, step.owner)
            if plain:
                layer.copy(source, plain, target, step.mode, owner)
            for named in archives:
                with self._unpacked(source, named, building / "unpacked") as tree:
                    layer.copy(tree, [Named(b"", (), True)], target, step.mode, owner)
        return self.owners

    def make_directory(self, building: Path, path: str) -> Owners:
        """Make a directory."""
        with self._new_layer(building) as (_, layer):
            layer.make_directory(path)
        return self.owners

    @contextmanager
    def _new_layer(self, building: Path) -> Iterator[tuple[ImageView, NewLayer]]:
        with (
            opened_image(self.below, self.layers) as image,
            new_layer(building / "data", image, self.owners.root, self.check, self.most_bytes) as layer,
        ):
            yield image, layer

    @contextmanager
    def _unpacked(self, source: BuildSource, named: Named, directory: Path) -> Iterator[BuildSource]:
        """Unpack an archive into a directory of its own, for as long as it is copied from there."""
        root = self.owners.root
        directory.mkdir(mode=0o700)
        try:
            with open(source.open(named.real), "rb") as file:
                told = Told(file, lambda _: self.check())
                stream = LayerStream(told, MOST_BYTES if self.most_bytes is None else self.most_bytes)
                unpack_layer(str(directory), (), stream, root=root, check=self.check)
                stream.finish()
            top = os.open(directory, OPEN_DIRECTORY)
            try:
                yield BuildSource(MergedView((top,), (root,)))
            finally:
                os.close(top)
        finally:
            remove_tree(str(directory))


def _owner(image: ImageView, text: str | None) -> tuple[int, int] | None:
    """Return the user and group that --chown names; a number is its own group too."""
    if text is None:
        return None
    try:
        found = find_image_user(image, text)
    except ValidationFailed as error:
        raise Refused(error.message) from None
    return found.id, found.group


def _is_archive(source: BuildSource, named: Named) -> bool:
    """Return whether a file is a tar archive; Refused for one that is packed in a way that is not known here."""
    if named.is_directory:
        return False
    with open(source.open(named.real), "rb") as file:
        start = file.read(_MAGIC_BYTES)
        for magic, name in _UNKNOWN.items():
            if start.startswith(magic):
                raise Refused(f"ADD does not unpack {name}: COPY it and RUN tar, or compress it by gzip or zstd")
        file.seek(0)
        if not start.startswith(_COMPRESSED):
            return file.read(tar.BLOCK)[257:262] == b"ustar"
        try:
            return LayerStream(file).read(tar.BLOCK)[257:262] == b"ustar"
        except Refused:
            return False
