"""A short load on a real server; `make load` is the long one."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "load.py"


def test_clients_of_every_kind_at_once_get_their_own_bytes_and_leave_nothing(cove_home: Path) -> None:
    options = ["--clients", "16", "--sandboxes", "5", "--seconds", "6"]
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["operations"] > 50
    assert report["runtimes killed"] > 0
