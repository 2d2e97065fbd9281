"""The records and the archives of moves, beside whoever clears up what was left."""

import os
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

import pytest

from cove.core.journal import NOBODY
from cove.errors import SandboxUnavailable
from cove.layers.export import Transfer
from cove.layers.record import PARTS
from cove.layers.store import LayerStore
from cove.linux.file_lock import make_locked
from cove.model import SandboxSpec
from cove.runtime.home import USER
from cove.server.cluster.sandbox_archive import packed
from cove.server.sandboxes import moves
from cove.server.sandboxes.directory import Directory, Record

MOVE = moves.Move(id="x", key="k" * 12, source="a", target="b", epoch=1)


def test_a_record_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = 2

    def make(path: Path) -> FileIO:
        nonlocal swept
        file = make_locked(path)
        if swept:
            swept -= 1
            path.unlink()
        return file

    monkeypatch.setattr(moves, "make_locked", make)
    file = moves.begin_out(Directory(tmp_path), MOVE)
    assert moves.find_out(Directory(tmp_path), "x") == MOVE
    with pytest.raises(SandboxUnavailable, match="being moved"):
        moves.begin_out(Directory(tmp_path), MOVE)
    file.remove()
    file.close()
    swept = 99
    with pytest.raises(SandboxUnavailable, match="cannot be noted"):
        moves.begin_out(Directory(tmp_path), MOVE)


def test_what_is_being_sent_is_no_garbage(tmp_path: Path) -> None:
    directory, store = Directory(tmp_path), LayerStore(tmp_path)
    place = directory.place(MOVE.key)
    for part in PARTS:
        (place / part).mkdir(parents=True)
    (place / "workspace" / "file").write_text("content")
    if os.geteuid() == 0:
        (place / USER).write_text("0 1")
    store.open()
    record = Record(id=MOVE.id, key=MOVE.key, spec=SandboxSpec(), created_at=datetime.now(UTC))
    with packed(directory, MOVE, record, NOBODY, (), Transfer(0, check=store.collect)) as pieces:
        store.collect()
        (working,) = (tmp_path / "layers").iterdir()
        assert b"layers/sha256-" in b"".join(pieces)
        assert working.exists()
    assert list((tmp_path / "layers").iterdir()) == []
