"""Templates: names that the configuration maps to specs, and snapshots and images by their own names."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from cove.errors import ImageNotFound, SnapshotNotFound, ValidationFailed
from cove.images.store import open_images
from cove.layers.store import LayerStore
from cove.model import SandboxSpec
from cove.model.spec import HOST_IMAGE
from cove.server.configuration import Configuration
from cove.server.e2b.protocol import HOME, Refusal
from cove.server.sandboxes.directory import Directory

# The names that clients send when their user has said none.
DEFAULT_TEMPLATES: Final = ("base", "code-interpreter-v1")


class Templates:
    """Calls block."""

    def __init__(self, directory: Directory, configuration: Configuration) -> None:
        self._directory = directory
        self._configuration = configuration

    def spec(self, name: str) -> SandboxSpec:
        """Return what a sandbox of that template is; raises Refusal."""
        configured: Mapping[str, SandboxSpec] = self._configuration.e2b_templates
        found = configured.get(name) or self._unnamed(name)
        return replace(found, workdir=HOME, keep_alive=True)

    def is_configured(self, name: str) -> bool:
        """Return whether a template is what the configuration says, and no image or snapshot."""
        return name in DEFAULT_TEMPLATES or name in self._configuration.e2b_templates

    def _unnamed(self, name: str) -> SandboxSpec:
        usual = self._configuration.e2b_spec
        if name in DEFAULT_TEMPLATES:
            return usual
        store = LayerStore(self._directory.home, self._directory.tenant)
        snapshot = self._find_snapshot(store, name)
        if snapshot is not None:
            return replace(usual, snapshot=snapshot, image=HOST_IMAGE, user=None)
        try:
            open_images(self._directory.home, store).find(name)
        except (ImageNotFound, ValidationFailed):
            raise Refusal(
                404,
                f"template '{name}' not found: this server has base, code-interpreter-v1, the e2b_templates of its "
                "configuration, and its images and snapshots by name (`cove image ls`, `cove snapshot ls`)",
            ) from None
        return replace(usual, image=name)

    def _find_snapshot(self, store: LayerStore, name: str) -> str | None:
        try:
            return store.find(name).id
        except (SnapshotNotFound, ValidationFailed):
            named = [each for each in store.list() if each.name == name]
            return named[-1].id if named else None
