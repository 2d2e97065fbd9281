"""Half a minute of random use with faults; `make soak` takes as long as it is told."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(("way", "minutes"), [("--embedded", 0.17), ("--server", 0.17), ("--cluster", 0.1)])
def test_random_use_with_random_faults_breaks_no_promise(way: str, minutes: float) -> None:
    command = [sys.executable, "-m", "soak", way, "--minutes", str(minutes), "--seed", "20"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout  # what failed is on standard error, with its history
