"""A program that prints without end costs bounded memory and leaves other terminals usable."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Sixty keys one after the other, of which the middle counts: a person does not notice less than this.
UNNOTICED_SECONDS = 0.03
# Ten scroll-backs would fit; what ten viewers are given at a time fits too.
MEMORY_BYTES = 24 << 20


@pytest.mark.alone
def test_a_flood_is_bounded_can_be_ended_and_leaves_other_terminals_responsive() -> None:
    program = Path(__file__).parent.parent / "support/flood.py"
    end = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=110)
    assert end.returncode == 0, end.stderr
    measured = json.loads(end.stdout)
    print(measured)
    for name, flood in measured["floods"].items():
        assert flood["code"] == 128 + signal.SIGINT, name
        assert flood["shown"] >= 20_000_000, name
        assert flood["growth"] < MEMORY_BYTES, name
        assert flood["echo"] < max(UNNOTICED_SECONDS, 10 * measured["quiet"]), name
