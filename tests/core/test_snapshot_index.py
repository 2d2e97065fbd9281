"""The index of an export is believed only as far as it can be checked."""

from datetime import UTC, datetime

import msgspec
import pytest

from cove.core.snapshot_index import (
    MOST_LAYERS,
    IndexedLayer,
    SnapshotIndex,
    decode_index,
    encode_index,
    index_file,
    layer_file,
    snapshot_digest,
)
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure

LAYER = IndexedLayer(digest="sha256:" + "a" * 64, size=5)
INDEX = SnapshotIndex(version=1, created_at=datetime(2026, 1, 1, tzinfo=UTC), layers=(LAYER,))


def test_an_index_comes_back_as_it_was() -> None:
    assert decode_index(encode_index(INDEX)) == INDEX
    assert INDEX.digest == snapshot_digest([LAYER.digest])
    assert snapshot_digest([]) != snapshot_digest([LAYER.digest]) != snapshot_digest([LAYER.digest] * 2)
    assert layer_file(LAYER.digest) == f"layers/sha256-{'a' * 64}.tar.zst"
    assert index_file("abc") == "snapshots/abc.json"


def test_what_is_no_index_is_refused() -> None:
    for data in (b"", b"{}", b"\xff", b'{"version": 1}', encode_index(INDEX).replace(b'"size": 5', b'"size": "5"')):
        with pytest.raises(ValidationFailed, match="no index"):
            decode_index(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"layers": (LAYER,) * (MOST_LAYERS + 1)},
        {"layers": (IndexedLayer(digest="sha256:../../etc", size=1),)},
        {"layers": (IndexedLayer(digest=LAYER.digest, size=-1),)},
        {"layers": (IndexedLayer(digest=LAYER.digest, size=1 << 60),)},
        {"name": "x" * 2000},
        {"labels": {"a": "b\0"}},
        {"labels": {str(number): "" for number in range(2000)}},
        {"env": {"A=B": "c"}},
        {"workdir": "relative"},
        {"created_at": datetime(2026, 1, 1)},  # no other time can be compared with it
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationFailed):
        decode_index(encode_index(msgspec.structs.replace(INDEX, **changes)))
