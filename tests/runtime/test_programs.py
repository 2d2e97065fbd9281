"""Installing the programs that run inside sandboxes."""

from pathlib import Path

import pytest

from cove.errors import SandboxUnavailable
from cove.linux.interpreter import Interpreter
from cove.runtime import programs


def test_an_interpreter_that_compiles_nothing_in_time_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python3"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(programs, "_COMPILE_SECONDS", 0.2)
    directory = tmp_path / "agent"
    directory.mkdir()
    with pytest.raises(SandboxUnavailable, match="too busy") as raised:
        programs.prepare_agent(directory, Interpreter(str(slow), (3, 11), None))
    assert raised.value.is_infrastructure_failure
    assert list(directory.iterdir()) == []
