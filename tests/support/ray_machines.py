"""Machines with `cove cluster start` and `join` on them: each has a network and a PID namespace, and Ray's processes.

Everything on a machine ends with the first process of its PID namespace, which ends with the test's.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from support.client_packages import installed_cove, ray_client
from support.cluster_machines import ClusterMachine, MachineCluster, common_settings, connected_machines
from support.leaks import process_table
from support.machines import Machine

_SECONDS = 90.0
# The first process of a machine: runs one program to its end, and writes what is left of all it started.
_FIRST = """
left=$1; shift
"$@" &
wait $!
ps -eo args= | grep -vE '^(bash -c|ps -eo|grep -vE)' > "$left"
"""


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = _SECONDS) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, f"it did not happen that {what}"
        time.sleep(0.05)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class RayMachine:
    """One node of a cluster on Ray."""

    def __init__(self, machine: Machine, home: Path, python: Path, search_path: str) -> None:
        self.machine = machine
        self.home = home
        self.output = home.with_suffix(".log")
        self.left = home.with_suffix(".left")
        self._python = str(python)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "COVE_HOME": str(home),
            "PYTHONPATH": search_path,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.machine.address}:8787"

    def start(self, *arguments: str) -> None:
        """Start `cove cluster` with these arguments."""
        namespaces = ["unshare", "--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc"]
        first = ["bash", "-c", _FIRST, "first", str(self.left)]
        with self.machine.inside(), self.output.open("ab") as output:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *namespaces, *first, *self._cove("cluster", *arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
            )

    def _cove(self, *arguments: str) -> list[str]:
        return [self._python, "-c", "from cove.cli import main; main()", *arguments]

    def cove(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command on this machine."""
        return self.run(self._cove(*arguments))

    def python(self, text: str) -> str:
        """Run a program on this machine, and return what it prints."""
        done = self.run([self._python, "-c", text])
        assert done.returncode == 0, done.stderr + self.output.read_text()
        return done.stdout

    def run(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        with self.machine.inside():
            return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=100)

    def pids(self, *words: str) -> list[int]:
        """The processes on it whose arguments have these words, by their ids outside."""
        assert self._process is not None
        table = process_table()
        found = [self._process.pid]
        for above in found:
            found += [pid for pid, (_, parent) in table.items() if parent == above]
        return [pid for pid in found[1:] if all(word in _command(pid) for word in words)]

    def kill(self, *words: str) -> None:
        """SIGKILL for these."""
        found = self.pids(*words)
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> str:
        """Tell the server to stop, and return what is left of all that it started."""
        assert self._process is not None
        for pid in self.pids("from cove.cli import main", "cluster")[1:2]:
            os.kill(pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> str:
        """Wait until the server has ended, and return what is left of all that it started."""
        assert self._process is not None
        self._process.wait(_SECONDS)
        self._process = None
        return self.left.read_text()

    def switch_off(self) -> None:
        """End everything on it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def machines_with_ray(names: str) -> Iterator[MachineCluster]:
    """Machines whose Python has Ray and this Cove; nothing runs on them yet."""
    python = ray_client()
    with connected_machines(names) as cluster:
        (packages := cluster["a"].home.parent / "packages").mkdir()
        search_path = installed_cove(packages)
        for machine in cluster.machines.values():
            machine.python = str(python)
            machine.environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
                "PYTHONPATH": search_path,
            }
        yield cluster


@contextmanager
def ray_cluster(names: str = "abc", block_slots: int = 16) -> Iterator[MachineCluster]:
    """Machines of which the first has run `cove cluster start`, and the others `join`; this thread is on the switch."""
    with machines_with_ray(names) as cluster:
        first, *others = cluster.machines.values()
        for machine in cluster.machines.values():
            machine.configuration.write_text(f"{common_settings(machine)}[cluster.ray]\nblock_slots = {block_slots}\n")
            options = ["--name", machine.name, "--ip", machine.address]
            machine.command = ["--config", str(machine.configuration), *options]
        first.command = ["cluster", "start", *first.command]
        first.start()
        wait_until(lambda: has_agent(first), "the agent of the head answers")
        for machine in others:
            token = ["--token-file", str(first.home / "cluster-token")]
            machine.command = ["cluster", "join", f"{first.address}:6379", *token, *machine.command]
            machine.start()
        for machine in cluster.machines.values():
            wait_until(lambda m=machine: members_of(m) == set(names), "all nodes know one another")  # type: ignore[misc]  # mypy infers no lambda with defaults
        with cluster.switch.inside():
            yield cluster


def has_agent(machine: ClusterMachine) -> bool:
    """Whether its agent listens, which it does when it is connected to Ray."""
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(str(machine.home / "server" / "agent.sock")) == 0


def members_of(machine: ClusterMachine) -> set[str]:
    """The nodes that this one knows."""
    try:
        found = json.loads((machine.home / "members.json").read_bytes())
    except FileNotFoundError:
        return set()
    return {each["name"] for each in found["members"]}


def room_of(machine: ClusterMachine) -> int:
    """The sandboxes that it may have."""
    most: int = json.loads((machine.home / "capacity.json").read_bytes())["most"]
    return most


def pids_of(machine: ClusterMachine, *words: str) -> set[int]:
    """The processes on it whose arguments have these words."""
    return {pid for pid in machine.processes() if all(word in _command(pid) for word in words)}


def kill_all(pids: set[int]) -> None:
    """SIGKILL for these."""
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended with one of the others
            os.kill(pid, signal.SIGKILL)
