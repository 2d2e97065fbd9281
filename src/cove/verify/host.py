"""Bait on the host that attempts look for: a file, a process, sockets, each with a secret that is nowhere else."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cove.local.state import default_home
from cove.runtime.interpreters import find_python_environment

_CANARY_PROGRAM = "import sys; sys.stdin.read()"


@contextmanager
def prepared_host() -> Iterator[dict[str, str]]:
    """Facts about what was prepared. Blocks for a moment."""
    with ExitStack() as stack:
        secret = f"cove-verify-{secrets.token_hex(12)}"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cove-verify-", dir="/var/tmp")))
        folder.chmod(0o777)
        canary = folder / "canary"
        canary.write_text(f"{secret}\n")
        canary.chmod(0o666)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for name in ("abstract", "socket"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind("\0" + secret if name == "abstract" else str(folder / "socket"))
            listener.listen()
        (folder / "socket").chmod(0o777)
        process = stack.enter_context(_canary_process(secret))
        # Open and inheritable on purpose: whoever starts a program carelessly hands it on.
        held = stack.enter_context(canary.open())
        os.set_inheritable(held.fileno(), True)
        found = canary.stat()
        yield {
            "secret": secret,
            "canary": str(canary),
            "canary_inode": f"{found.st_dev}:{found.st_ino}",
            "folder": str(folder),
            "state": str(default_home()),
            "state_name": default_home().name,
            "python": str(find_python_environment(default_home()) or default_home()),
            "port": str(server.getsockname()[1]),
            "abstract": secret,
            "socket": str(folder / "socket"),
            "process": str(process.pid),
            "process_mark": secret,
            "program_mark": Path("/proc/self/cmdline").read_bytes().decode("utf-8", "replace"),
            "network_namespace": str(os.stat("/proc/self/ns/net").st_ino),
        }


@contextmanager
def _canary_process(secret: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CANARY_PROGRAM, secret], stdin=subprocess.PIPE, env={"SECRET": secret}
    ) as process:
        yield process
        process.kill()
