"""Pull an image: its layers side by side, each verified, then unpacked on one another. Blocks."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from cove.errors import ValidationFailed
from cove.images.blobs import Blobs
from cove.images.credentials import find_credentials
from cove.images.manifest import Descriptor, ImageConfig, Manifest, chain_ids, check_layers, decode
from cove.images.record import ImageRecord
from cove.images.reference import Reference, parse_reference
from cove.images.registry import Connect, Registry
from cove.images.sources import Files, LayerBlob, Slice, Source, SourceImage
from cove.images.store import ImageStore, Progress, layer_id
from cove.model import TransferProgress

PARALLEL = 4
MOST_BLOB_BYTES = 32 << 30
REGISTRY_VARIABLE = "COVE_REGISTRY"


def pull(
    store: ImageStore,
    name: str,
    progress: Progress,
    connect: Connect | None = None,
    check: Callable[[], object] = lambda: None,
) -> ImageRecord:
    """Pull what a reference names. What an interrupted pull has fetched is used again. `check` may raise to give up."""
    wanted = parse_reference(name)
    reference = _at_registry(wanted)
    registry = Registry(reference, find_credentials(reference.host), connect=connect)
    manifest = registry.manifest()
    config_bytes = registry.document(manifest.config)
    config = decode(config_bytes, ImageConfig, "configuration")
    check_layers(len(manifest.layers), config)
    if sum(layer.size for layer in manifest.layers) > MOST_BLOB_BYTES:
        raise ValidationFailed(f"{name} has more than {MOST_BLOB_BYTES >> 30} GiB of layers")
    pairs = list(zip(manifest.layers, config.rootfs.diff_ids, strict=True))
    layers = tuple(LayerBlob(layer.digest, diff_id, layer.digest) for layer, diff_id in pairs)
    missing = [] if store.has_image(config_bytes) else _missing(store, manifest, config)
    with blobs_of(store).holding({layer.digest for layer in missing}) as blobs:
        _fetch_all(registry, missing, blobs, progress)
        source = Source(SourceImage(config_bytes, config, layers, str(wanted)), _Fetched(blobs))
        return store.load_source(source, str(wanted), progress, check)


def _at_registry(wanted: Reference) -> Reference:
    if wanted.host:
        return wanted
    host = os.environ.get(REGISTRY_VARIABLE)
    if not host:
        raise ValidationFailed(
            f"{wanted} names no registry: write HOST/{wanted}, or set {REGISTRY_VARIABLE} to the one you use"
        )
    return Reference(host, wanted.name, wanted.tag, wanted.digest)


def blobs_of(store: ImageStore) -> Blobs:
    """Return the blobs that pulls have fetched."""
    return Blobs(store.path / "blobs", store.layers.tenant)


def _missing(store: ImageStore, manifest: Manifest, config: ImageConfig) -> list[Descriptor]:
    chain = [*map(layer_id, chain_ids(config.rootfs.diff_ids))]
    here = store.find_here(chain)
    return [layer for layer, id in zip(manifest.layers, chain, strict=True) if id not in here]


def _fetch_all(registry: Registry, layers: Sequence[Descriptor], blobs: Mapping[str, Path], progress: Progress) -> None:
    lock = Lock()
    fetched: dict[str, int] = {}
    total = sum(layer.size for layer in layers)

    def count(digest: str, done: int, _: int) -> None:
        with lock:
            fetched[digest] = done
            progress(
                TransferProgress(layers=0, total_layers=len(layers), bytes=sum(fetched.values()), total_bytes=total)
            )

    def fetch(layer: Descriptor) -> None:
        registry.fetch(layer, blobs[layer.digest], count)

    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="cove-pull") as threads:
        for done in [threads.submit(fetch, layer) for layer in {layer.digest: layer for layer in layers}.values()]:
            done.result()


class _Fetched(Files):
    """Blobs by their digests."""

    def __init__(self, blobs: Mapping[str, Path]) -> None:
        self._blobs = blobs

    def has(self, name: str) -> bool:
        return name in self._blobs

    def open(self, name: str) -> Slice:
        fd = os.open(self._blobs[name], os.O_RDONLY | os.O_CLOEXEC)
        return Slice(fd, 0, os.fstat(fd).st_size)
