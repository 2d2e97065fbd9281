"""Three nodes of a static cluster on loopback ports, as users start them."""

import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cove.core.cluster import code_of
from support.servers import Server, serving

NAMES = ("a", "b", "c")
API_KEY = "the-key-of-the-cluster"


@dataclass
class Cluster:
    """The nodes by their names; one that was ended can be started again where it was."""

    configurations: dict[str, Path]
    homes: dict[str, Path]
    peer_key: str
    servers: dict[str, Server] = field(default_factory=dict)
    stacks: dict[str, ExitStack] = field(default_factory=dict)
    before: str = ""

    def start(self, name: str, *options: str) -> Server:
        stack = self.stacks[name] = ExitStack()
        arguments = ("--config", str(self.configurations[name]), "--port", self.port(name), *options)
        server = stack.enter_context(serving(self.homes[name], *arguments, "--on-stop", "destroy", before=self.before))
        server.key = API_KEY
        self.servers[name] = server
        return server

    def port(self, name: str) -> str:
        return self.configurations[name].read_text().split("# port ")[1].split()[0]

    def stop(self, name: str) -> None:
        self.stacks.pop(name).close()

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def node_of(self, id: str) -> str:
        """The node that an id was made on."""
        return next(name for name in self.servers if id.endswith(code_of(name)))

    def another(self, node: str) -> Server:
        return self.servers[next(name for name in self.servers if name != node)]


def free_ports(count: int) -> list[int]:
    """Ports that nobody else has now. Each is held until all are known, so that no two are the same."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in held]


@contextmanager
def cluster_of(
    *names: str, settings: str = "", fakes: Mapping[str, int] | None = None, before: str = "", of_cluster: str = ""
) -> Iterator[Cluster]:
    """Nodes that know one another, and as members what tests let listen on ports; at the end they are told to stop."""
    root = Path(tempfile.mkdtemp(prefix="cove-cluster-", dir="/tmp"))
    root.chmod(0o711)
    key = root / "peer-key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_urlsafe(32))
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    members = ", ".join(f'{name} = "http://127.0.0.1:{port}"' for name, port in {**ports, **(fakes or {})}.items())
    cluster = Cluster({}, {}, key.read_text(), before=before)
    for name, port in ports.items():
        home = cluster.homes[name] = root / name
        home.mkdir(mode=0o711)
        home.chmod(0o711)
        cluster.configurations[name] = root / f"{name}.toml"
        cluster.configurations[name].write_text(
            f"# port {port}\nworkers = 2\npreview_port = 0\napi_key = {API_KEY!r}\n{settings}\n"
            f"[cluster]\nnode = {name!r}\npeer_key_file = {str(key)!r}\nmembers = {{{members}}}\n{of_cluster}\n"
        )
    try:
        with ThreadPoolExecutor(len(names)) as threads:
            list(threads.map(cluster.start, names))
        yield cluster
    finally:
        for name in list(cluster.stacks):
            cluster.stop(name)
        shutil.rmtree(root)


def cluster_of_three() -> AbstractContextManager[Cluster]:
    """The nodes a, b and c."""
    return cluster_of(*NAMES)
