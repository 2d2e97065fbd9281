"""A cluster of machines on one switch: each has network, PID and mount namespaces, a state directory and `cove serve`.

Everything ends with the test's process, also when it is killed: the first process of a machine ends when its standard
input does, `setpriv` and `unshare` tell it of the death of their parents, and with it the kernel ends the machine. The
mounts of this machine are seen inside as they are, control groups too: limits hold.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from support.leaks import KEYS, control_groups, process_table
from support.machines import Machine
from support.programs import places, wait_until_gone

API_KEY = "the-key-of-the-cluster"
PORT = 8787
_UP_SECONDS = 90.0
_NETWORK = "192.0.2"

needs_machines = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(name) for name in ("ip", "unshare", "setpriv")),
    reason="machines take root, ip(8), unshare(1) and setpriv(1)",
)

# The first process of a machine: starts a program for each line that it is told, reaps, and ends with who started it.
_INIT = """
import json, os, sys, threading, time
def start():
    for line in sys.stdin:
        if os.fork() == 0:
            os.setsid()
            os.execv(sys.executable, [sys.executable, *json.loads(line)])
    os._exit(0)
threading.Thread(target=start).start()
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        time.sleep(0.02)
"""
_COVE = ("-c", "from cove.cli import main; main()")


class ClusterMachine(Machine):
    """One node. Its addresses outlive what runs on it, as those of a machine that is switched off and on."""

    def __init__(self, name: str, number: int, switch: Machine, root: Path) -> None:
        super().__init__(f"{_NETWORK}.{number}")
        self.name = name
        self.python = sys.executable
        self.command: list[str] = []
        self.environment = dict(os.environ)
        self.home = root / name
        self.configuration = root / f"{name}.toml"
        self._switch = switch
        self._port = f"port{number}"
        self._init: subprocess.Popen[bytes] | None = None
        self.home.mkdir(mode=0o711)
        self.home.chmod(0o711)
        KEYS.watch(self.home)

    @property
    def url(self) -> str:
        return f"http://{self.address}:{PORT}"

    def plug_in(self) -> None:
        """Connect the machine to the switch."""
        with self._switch.inside():
            there = f"/proc/self/fd/{self.descriptor}"
            link = ["ip", "link", "add", self._port, "type", "veth", "peer", "name", "link0", "netns", there]
            subprocess.run(link, check=True, pass_fds=[self.descriptor])
            subprocess.run(["ip", "link", "set", self._port, "master", "switch", "up"], check=True)
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "link0")
        self.set_link("up")

    def start(self) -> None:
        """Switch it on if it is off, and start the server; returns before that listens."""
        self.start_python(*_COVE, *self.command)

    def start_python(self, *arguments: str) -> None:
        """Start Python with these arguments on it, and wait for nothing."""
        if self._init is None:
            self._init = self._switch_on()
        assert self._init.stdin is not None
        self._init.stdin.write(json.dumps(arguments).encode() + b"\n")
        self._init.stdin.flush()

    def _switch_on(self) -> "subprocess.Popen[bytes]":
        namespaces = ["unshare", "--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc"]
        with self.inside(), (self.home / "output").open("ab") as output:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *namespaces, self.python, "-c", _INIT],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**self.environment, "COVE_HOME": str(self.home)},
            )

    def cove(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of the command line on it."""
        command = [self.python, *_COVE, *arguments]
        environment = {**self.environment, "COVE_HOME": str(self.home)}
        with self.inside():
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_UP_SECONDS)

    def processes(self) -> list[int]:
        """All that run on it, by their ids outside; the first one is first."""
        if self._init is None:
            return []
        table = process_table()
        found = [self._init.pid]
        for above in found:
            found += [pid for pid, (_, parent) in table.items() if parent == above]
        return found[1:]

    def kill(self) -> None:
        """Switch it off: everything on it ends at once, and whoever talks to it is told by its kernel."""
        if self._init is None:
            return
        there = self.processes()
        self._init.kill()
        self._init.wait()
        assert self._init.stdin is not None
        self._init.stdin.close()
        self._init = None
        assert wait_until_gone(there) == []

    def kill_server(self) -> None:
        """SIGKILL for the server, its workers, its zygote and its agents at once; sandboxes live on."""
        table = process_table()
        servers = {table[pid][1] for pid in self.processes() if _name(pid) in ("cove-worker", "cove-zygote")}
        assert servers, "there is no server"
        ours = [*servers, *(pid for pid, (_, parent) in table.items() if parent in servers)]
        for pid in ours:
            with suppress(ProcessLookupError):  # it has ended with the server
                os.kill(pid, signal.SIGKILL)
        assert wait_until_gone(ours) == []

    def cut(self) -> None:
        """Pull the cable."""
        with self._switch.inside():
            subprocess.run(["ip", "link", "set", self._port, "down"], check=True)

    def stop_all(self) -> None:
        """Let everything on it stand still."""
        self._signal(signal.SIGSTOP)

    def heal(self) -> None:
        """Put the cable back, and let everything go on."""
        with self._switch.inside():
            subprocess.run(["ip", "link", "set", self._port, "up"], check=True)
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """Send it to all, and to what they started meanwhile."""
        told: set[int] = set()
        while new := [pid for pid in self.processes() if pid not in told]:
            for pid in new:
                told.add(pid)
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue

    def wait_until_up(self) -> None:
        """Wait until its server listens."""
        until = time.monotonic() + _UP_SECONDS
        while not self._listens():
            assert time.monotonic() < until, (self.home / "output").read_text()
            time.sleep(0.02)

    def _listens(self) -> bool:
        with self.inside():
            table = Path("/proc/thread-self/net/tcp").read_text()
        return any(f":{PORT:04X} 00000000:0000 0A" in line for line in table.splitlines())

    def remove_groups(self) -> None:
        """Remove the control groups of the sandboxes that a machine which was switched off had."""
        keys = places(self.home)
        for group in control_groups():
            if os.path.basename(group) in keys:
                for path, _, _ in os.walk(group, topdown=False):
                    os.rmdir(path)


class MachineCluster:
    """The machines by their names. Who is `inside` the switch reaches them all."""

    def __init__(self, machines: dict[str, ClusterMachine], switch: Machine) -> None:
        self.machines = machines
        self.switch = switch

    def __getitem__(self, name: str) -> ClusterMachine:
        return self.machines[name]

    @property
    def url(self) -> str:
        """All addresses."""
        return ",".join(machine.url for machine in self.machines.values())


@contextmanager
def machine_cluster(names: str = "abc", settings: str = "") -> Iterator[MachineCluster]:
    """Machines that know one another by a list, all of them up; this thread is on the switch."""
    with connected_machines(names) as cluster:
        peer_key = cluster["a"].home.parent / "peer-key"
        peer_key.touch(mode=0o600)
        peer_key.write_text(secrets.token_urlsafe(32))
        members = ", ".join(f'{name} = "{machine.url}"' for name, machine in cluster.machines.items())
        for machine in cluster.machines.values():
            machine.configuration.write_text(
                f"{common_settings(machine)}{settings}\n[cluster]\nnode = {machine.name!r}\n"
                f"peer_key_file = {str(peer_key)!r}\nmembers = {{{members}}}\n"
            )
            machine.command = ["serve", "--config", str(machine.configuration)]
            machine.start()
        for machine in cluster.machines.values():
            machine.wait_until_up()
        with cluster.switch.inside():
            yield cluster


def common_settings(machine: ClusterMachine) -> str:
    """What every server of a cluster is told, however it knows the others."""
    return f"host = '{machine.address}'\nport = {PORT}\npreview_port = 0\nworkers = 1\napi_key = {API_KEY!r}\n"


@contextmanager
def connected_machines(names: str) -> Iterator[MachineCluster]:
    """Machines on a switch; nothing runs on them yet, and nothing is left of them afterwards."""
    root = Path(tempfile.mkdtemp(prefix="cove-machines-", dir="/tmp"))
    root.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        switch = Machine(f"{_NETWORK}.254")
        stack.callback(os.close, switch.descriptor)
        switch.run("ip", "link", "set", "lo", "up")
        switch.run("ip", "link", "add", "switch", "type", "bridge")
        switch.run("ip", "address", "add", f"{switch.address}/24", "dev", "switch")
        switch.run("ip", "link", "set", "switch", "up")
        machines = {}
        for number, name in enumerate(names, 1):
            machine = machines[name] = ClusterMachine(name, number, switch, root)
            stack.callback(os.close, machine.descriptor)
            stack.callback(machine.remove_groups)
            stack.callback(machine.kill)
            stack.callback(machine.heal)
            machine.plug_in()
        yield MachineCluster(machines, switch)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
