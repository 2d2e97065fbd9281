"""Facts of images."""

from datetime import datetime

import msgspec


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one image. `size` is in bytes, unpacked; `id` is the digest of its configuration.

    `env`, `workdir` and `user` hold for what runs in a sandbox on it. `entrypoint` and `command` are what the image
    would start: they are told, and not started.
    """

    name: str
    id: str
    created_at: datetime
    size: int
    layers: int
    architecture: str = ""
    env: tuple[str, ...] = ()
    workdir: str = ""
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    owner: str | None = None


class ImageMade(msgspec.Struct, frozen=True, kw_only=True, tag="image"):
    """The image that was loaded, pulled or built: the last event of a stream that tells how far that is."""

    image: ImageInfo
