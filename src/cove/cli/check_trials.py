"""Try real sandboxes: one that runs a command, one with a context, one with a network policy."""

import asyncio
import os
from pathlib import Path

from cove import AsyncSandbox, NetworkPolicy
from cove.cli.check import Check, missing, ok, warning
from cove.core.jail import USER_ID
from cove.errors import CoveError, SandboxUnavailable
from cove.local.state import default_home
from cove.runtime.interpreters import find_python_environment
from cove.runtime.network import NO_NF_TABLES

_TRIAL_SECONDS = 30.0


def check_environment() -> Check:
    """The environment of Python contexts: whether it can be used is tried in a real sandbox."""
    path = find_python_environment(default_home())
    name = "Python contexts"
    if path is None:
        configured = os.environ.get("COVE_PYTHON")
        found = f"COVE_PYTHON is {configured}, which has no bin/python3" if configured else "no environment for them"
        return warning(name, found, "`cove setup` makes one: IPython, numpy, pandas, matplotlib.")
    return asyncio.run(_try_context(name, path))


async def _try_context(name: str, path: Path) -> Check:
    try:
        async with AsyncSandbox.create() as sandbox:
            execution = await sandbox.run_code("6 * 7", timeout=_TRIAL_SECONDS)
    except SandboxUnavailable:
        return warning(name, f"{path}, not tried: no sandbox starts", "See the other checks.")
    except (CoveError, OSError) as error:
        return warning(name, f"{path} cannot be used", f"{error}. `cove setup --anew` makes the environment again.")
    if execution.text != "42":
        return warning(name, f"{path}: {execution.error}", "`cove setup --anew` makes the environment again.")
    return ok(name, str(path))


async def try_network() -> Check:
    """Try whether a policy has every port."""
    try:
        async with AsyncSandbox.create(network=NetworkPolicy(allow=["cove.invalid"])) as sandbox:
            warnings = (await sandbox.info()).warnings
    except (CoveError, OSError) as error:
        return warning("network policies", "not tried: no sandbox with one starts", f"{error}. See the other checks.")
    return judge_ports(any(NO_NF_TABLES in warning for warning in warnings))


def judge_ports(is_without: bool) -> Check:
    """Warn of a kernel without nf_tables: policies then have only the ports that they name."""
    name = "network policies"
    if not is_without:
        return ok(name, "every TCP port can be allowed, and servers inside can have any from 1024 on (nf_tables)")
    advice = (
        "`internet` is ports 22, 80 and 443, and servers inside cannot have a port of a policy. To have every port: "
        "`sudo modprobe -a nf_tables nft_chain_nat nft_nat nft_ct` (in a container: on its host)."
    )
    return warning(name, "only the ports that a policy names: " + NO_NF_TABLES, advice)


async def check_trial() -> Check:
    """Run a command in a real sandbox."""
    name = "a real sandbox"
    try:
        async with AsyncSandbox.create() as sandbox:
            result = await sandbox.exec(["id", "-u"], timeout=_TRIAL_SECONDS)
            info = await sandbox.info()
    except CoveError as error:
        return missing(name, "it did not start", error.message)
    except OSError as error:
        return missing(name, "it did not start", f"{error}: see the checks above.")
    if not result.ok or result.stdout.strip() != str(USER_ID):
        return missing(name, f"its first command {result.outcome}: {result.stderr.strip()}", "See the checks above.")
    return ok(name, f"runs commands; isolation: {info.isolation}; tree kill: {info.tree_kill}")
