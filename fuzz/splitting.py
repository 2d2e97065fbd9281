"""Cut bytes into pieces, as a network does: the same pieces for the same bytes."""

import random
import zlib
from collections.abc import Iterator


def cut(data: bytes, most: int = 40) -> Iterator[bytes]:
    """Give the bytes in pieces of up to `most`, which depend on nothing but the bytes."""
    chance = random.Random(zlib.crc32(data))
    at = 0
    while at < len(data):
        size = chance.choice((1, 2, 3, most // 2, most))
        yield data[at : at + size]
        at += size
