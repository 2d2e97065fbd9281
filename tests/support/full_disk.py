"""A state directory on a small file system of its own, in a mount namespace that ends with the program in it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from support.crash import program_text

_SIZE = "48m"


def run_on_small_disk(text: str, home: Path) -> str:
    """Run a program whose COVE_HOME is on a small disk; returns what it printed. A plain user mounts as nobody else."""
    mount = f"mount -t tmpfs -o size={_SIZE},mode=711 tmpfs {shlex.quote(str(home))}"
    is_root = os.geteuid() == 0
    drop = [] if is_root else ["setpriv", "--ambient-caps=-all", "--inh-caps=-all", "--"]
    enter = ["unshare", "-m"] if is_root else ["unshare", "-U", "--map-current-user", "--keep-caps", "-m"]
    command = shlex.join([*drop, sys.executable, "-c", program_text(text)])
    done = subprocess.run(
        [*enter, "sh", "-c", f"{mount} && exec {command}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COVE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
