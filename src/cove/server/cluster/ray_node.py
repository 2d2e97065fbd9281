"""Ray's own processes on this node: `ray start --block` as a child of `cove serve`, with a token, ended by its pid.

    python -m cove.server.cluster.ray_node PARENT ARGUMENT ...

becomes `ray start` that ends with its parent. It leads a session of its own: Ray ends its process group when it ends.
What a killed one has left is found by a variable in its environment, and ended before the next start and after the
last: never by the name of a program, as `ray stop` does, which ends every Ray of the machine.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from cove.errors import SandboxUnavailable
from cove.linux.forking import end_with_parent
from cove.linux.pidfd import kill_marked
from cove.server.configuration import RayRole, RaySettings

_MARK = "COVE_RAY"
_TOKEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_SECRETS = (*_TOKEN, "COVE_API_KEY")
# A session's sockets lie in it, below a name of about 65 characters: unix(7) allows 107.
_MOST_DIRECTORY_BYTES = 42
# A cut link is seen after about 8 seconds; Ray's own settings need more than a minute.
_HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    # A raylet gives up a head that does not know it any more, and is started again; by itself after a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
}
_OBJECT_STORE_BYTES = 80_000_000  # Cove keeps nothing there; Ray refuses less than 75 MiB


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for processes that need neither the API key nor Ray's token."""
    return {name: value for name, value in environment.items() if name not in _SECRETS}


def forget_ray_token() -> None:
    """Take Ray's token out of the environment of this process, for all that it forks."""
    for name in _TOKEN:
        os.environ.pop(name, None)


def ray_environment(token_file: str) -> dict[str, str]:
    """Return the environment of the agent: what a driver of Ray needs to be let in."""
    return {
        **without_secrets(os.environ),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def node_environment(home: Path, token_file: str) -> dict[str, str]:
    """Return the environment of Ray's processes."""
    return {
        **ray_environment(token_file),
        **_HEALTH,
        "RAY_prestart_worker_first_driver": "0",
        _MARK: str(home),
    }


def ray_directory(home: Path) -> Path:
    """Return where Ray has its sockets and logs. It opens it to all users: it is in one that is closed to them."""
    return home / "ray" / "t"


def ray_command(home: Path, node: str, ray: RaySettings) -> list[str]:
    """Return the arguments of `ray start` for a node that has so many slots."""
    directory = ray_directory(home)
    if len(os.fsencode(directory)) > _MOST_DIRECTORY_BYTES:
        raise SandboxUnavailable(f"the path {home} is too long for Ray's sockets: choose a shorter --home")
    host, _, port = ray.address.rpartition(":")
    where, ip = [f"--address={ray.address}"], ray.ip
    if ray.role is RayRole.HEAD:
        where, ip = ["--head", f"--port={port}", "--include-dashboard=false"], ray.ip or host
    return [
        "--block",
        *where,
        *([] if ip is None else [f"--node-ip-address={ip}"]),
        f"--resources={json.dumps({'cove': ray.slots})}",
        f"--labels=cove-node={node}",
        f"--temp-dir={directory}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
        "--disable-usage-stats",
    ]


def end_left_overs(home: Path) -> None:
    """End what is left of Ray on this state directory. Blocks until it is gone."""
    kill_marked(_MARK, str(home))


def main() -> None:
    """Become `ray start`."""
    end_with_parent(int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execv(sys.executable, [sys.executable, "-m", "ray.scripts.scripts", "start", *sys.argv[2:]])  # noqa: S606


if __name__ == "__main__":
    main()
