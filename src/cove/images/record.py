"""The record of an image, as it is kept on disk."""

from datetime import datetime

import msgspec

from cove.images.manifest import ImageConfig


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One name for an image: its layers, bottom first, and its configuration. `id` is the configuration's digest.

    One with an `origin` is a copy of what that node of the cluster has.
    """

    id: str
    name: str
    created_at: datetime
    layers: tuple[str, ...]
    config: ImageConfig
    size: int
    tenant: str = ""
    origin: str = ""
