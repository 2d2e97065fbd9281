"""Ask Ray's head whether it knows a token, and whether it needs one, in a process of its own. Blocks."""

import importlib.util
import subprocess
import sys
from enum import StrEnum

from cove.errors import ValidationFailed
from cove.local.extras import install_command
from cove.server.cluster.ray_node import ray_environment

_SECONDS = 90.0


class Welcome(StrEnum):
    """The outcome of a probe."""

    WELCOME = "welcome"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


def check_ray_is_installed() -> None:
    """Raise ValidationFailed, with what to do, where there is no Ray. It is not imported."""
    if importlib.util.find_spec("ray") is None:
        raise ValidationFailed(f"a cluster needs Ray, which is not installed: `{install_command('cluster')}`")


def probe(address: str, token_file: str | None) -> tuple[Welcome, str]:
    """Return the outcome with that token, or with none, and the version of Ray here."""
    environment = ray_environment(token_file or "/dev/null")
    if token_file is None:
        environment["RAY_AUTH_MODE"] = "disabled"
        del environment["RAY_AUTH_TOKEN_PATH"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cove.server.ray_agent.probe", address],
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return Welcome.UNREACHABLE, ""
    outcome, _, version = done.stdout.strip().rpartition("\n")[2].partition(" ")
    return (Welcome(outcome), version) if outcome in set(Welcome) else (Welcome.UNREACHABLE, "")
