"""A real `cove serve` that is killed and started again while it is used."""

import asyncio
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from cove.server.sandboxes.directory import Directory

_MAIN = "from cove.cli import main; main()"
_WORKERS = 2
_START_SECONDS = 180.0  # also on a machine that others keep busy
API_KEY = "the-key-of-the-soak-run"


class Server:
    """One server on a state directory and a port of its own; what it complains about goes to a file."""

    def __init__(self, home: Path, configuration: Path, port: int | None = None, name: str = "") -> None:
        self.home = home
        self.name = name
        self._configuration = configuration
        self.directory = Directory(home)
        self.complaints = home.with_name(home.name + ".log")
        self._port = port or free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[str] | None = None

    @property
    def key(self) -> str:
        """What clients show."""
        return API_KEY

    def start(self) -> None:
        """Start it; returns when it serves."""
        command = [sys.executable, "-c", _MAIN, "serve", "--port", str(self._port), "--workers", str(_WORKERS)]
        with self.complaints.open("a") as complaints:
            self._process = subprocess.Popen(
                [*command, "--preview-port", "0", "--on-stop", "destroy", "--config", str(self._configuration)],
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                env={**os.environ, "COVE_HOME": str(self.home), "PYTHONFAULTHANDLER": "1"},
            )
        assert self._process.stdout is not None
        is_ready, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
        if not is_ready:
            self._process.send_signal(signal.SIGABRT)  # its stack is then in what it complains about
        line = self._process.stdout.readline()
        self._process.stdout.close()
        if re.search(r"http://\S+", line) is None:
            raise RuntimeError(f"the server did not start: {line} {self.complaints.read_text()[-2000:]}")

    def stop(self) -> None:
        """Tell it to end, with all its sandboxes."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_START_SECONDS)

    def kill(self) -> None:
        """End the server, its workers and its zygote at once; runtimes live on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The supervisor."""
        assert self._process is not None
        return self._process.pid

    def children(self, role: str) -> list[int]:
        """The workers, or the zygote; none of a server that was killed."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return []
        return [int(pid) for pid in children if _name(int(pid)) == f"cove-{role}"]

    def helpers(self) -> list[int]:
        """All that a server without sandboxes has."""
        return [*self.children("worker"), *self.children("zygote")]

    async def kill_child(self, role: str, choice: int) -> None:
        """End one of them and wait until another has taken its place."""
        before = await asyncio.to_thread(self.children, role)
        if before:
            os.kill(before[choice % len(before)], signal.SIGKILL)
            for _ in range(int(_START_SECONDS * 100)):
                now = await asyncio.to_thread(self.children, role)
                if len(now) >= len(before) and set(now) != set(before):
                    return
                await asyncio.sleep(0.01)  # another program replaces it, and tells nobody
            raise RuntimeError(f"a {role} was killed and not replaced")

    def kill_all(self) -> None:
        """End everything, as a machine does whose power fails: the server, all runtimes and what they run."""
        keys = os.listdir(self.home / "sandboxes") if (self.home / "sandboxes").exists() else []
        self.kill()
        for key in keys:
            holder = self.directory.holder(key)
            if holder is not None:
                with suppress(ProcessLookupError):
                    os.kill(holder[0], signal.SIGKILL)

    def has(self, id: str) -> bool:
        """Whether a sandbox is here."""
        place = self.place(id)
        return place is not None and place.exists()

    def runtime(self, id: str) -> int | None:
        """The pid of a sandbox's runtime."""
        record = self.directory.find(id)
        holder = None if record is None else self.directory.holder(record.key)
        return None if holder is None else holder[0]

    def place(self, id: str) -> Path | None:
        """Where a sandbox's files are."""
        record = self.directory.find(id)
        return None if record is None else self.directory.place(record.key)


def free_port() -> int:
    """One that is free, as is the next, and that the kernel gives to no connection meanwhile."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with (
            suppress(OSError),
            socket.create_server(("127.0.0.1", port)),
            socket.create_server(("127.0.0.1", port + 1)),
        ):
            return port


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
