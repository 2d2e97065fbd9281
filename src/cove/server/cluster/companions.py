"""Start what a node of a cluster on Ray has beside its workers: Ray's own processes, and the agent. Blocks."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

import cove
from cove.core.cluster import code_of
from cove.model.cluster import Member, Members
from cove.server.cluster.agent_protocol import AgentSettings
from cove.server.cluster.kept import read_kept
from cove.server.cluster.ray_node import end_left_overs, node_environment, ray_command, ray_directory, ray_environment
from cove.server.configuration import ClusterSettings, RayRole, RaySettings
from cove.server.sandboxes.capacity import write_capacity
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.members import read_members, write_members


class Companions:
    """The processes of one node, each started by its own method, which returns the pid."""

    def __init__(self, home: Path, cluster: ClusterSettings, ray: RaySettings, most: int | None) -> None:
        self._home = home
        self._cluster = cluster
        self._ray = ray
        self._most = most

    @property
    def has_ray(self) -> bool:
        """Return whether Ray is started here."""
        return self._ray.role is not RayRole.ATTACH

    def prepare(self, port: int) -> None:
        """Write what holds until the agent knows more: the room that was granted, and the members of the last time."""
        kept = read_kept(Directory(self._home).server)
        slots = 0 if kept.is_draining else kept.slots
        write_capacity(self._home, slots if self._most is None else min(slots, self._most))
        known = read_members(self._home)
        if known is None or known.node != self._cluster.node:
            name = self._cluster.node
            address = self._cluster.address or f"http://{self._ray.ip or '127.0.0.1'}:{port}"
            alone = Member(name=name, address=address, code=code_of(name), version=cove.__version__, slots=slots)
            write_members(self._home, Members(node=name, members=(alone,)))

    def start_ray(self) -> int:
        """Start Ray, after what is left of one before has ended."""
        end_left_overs(self._home)
        self._make_directory()
        command = ray_command(self._home, self._cluster.node, self._ray)
        return _start(
            [sys.executable, "-m", "cove.server.cluster.ray_node", str(os.getpid()), *command],
            node_environment(self._home, self._ray.token_file),
            self._home / "ray" / "start.log",
        )

    def _make_directory(self) -> None:
        """Make the directory that Ray fills; of those before, the last one is kept, for its logs."""
        directory = ray_directory(self._home)
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        before = directory.with_name("before")
        if directory.exists():
            shutil.rmtree(before, ignore_errors=True)
            directory.rename(before)

    def start_agent(self, port: int) -> int:
        """Start the agent."""
        settings = AgentSettings(
            home=str(self._home),
            node=self._cluster.node,
            port=port,
            address=self._cluster.address,
            engine_address=self._ray.address,
            engine_ip=self._ray.ip,
            token_file=self._ray.token_file,
            max_sandboxes=self._most,
            block_slots=self._ray.block_slots,
            slot_cpus=self._ray.slot_cpus,
            slot_memory=self._ray.slot_memory,
            idle_seconds=self._ray.idle_seconds,
        )
        command = [sys.executable, "-m", "cove.server.ray_agent", str(os.getpid())]
        return _start([*command, msgspec.json.encode(settings).decode()], ray_environment(self._ray.token_file), None)

    def end_left_overs(self) -> None:
        """End what Ray has left."""
        if self.has_ray:
            end_left_overs(self._home)


def _start(command: Sequence[str], environment: Mapping[str, str], output: Path | None) -> int:
    """Start a child that the caller waits for; what it prints goes into a file of its own, if there is one."""
    log = None if output is None else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        ) as process:
            process.returncode = 0  # from here on the child is waited for by its pid
    finally:
        if log is not None:
            os.close(log)
    return process.pid
