"""The records of moves, beside whoever clears up what was left."""

from io import FileIO
from pathlib import Path

import pytest

from cove.errors import SandboxUnavailable
from cove.linux.file_lock import make_locked
from cove.server.sandboxes import moves
from cove.server.sandboxes.directory import Directory

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
