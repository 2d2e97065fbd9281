"""Try real sandboxes: one that runs a command, one with a context, one with a network policy."""

import asyncio
import os
import subprocess
from pathlib import Path

from cove import AsyncSandbox, NetworkPolicy
from cove.cli.check import Check, install, is_root, missing, ok, warning
from cove.cli.check_kernel import judge_snapshots
from cove.core.jail import USER_ID
from cove.errors import CoveError, SandboxUnavailable
from cove.layers.support import explain_copies, is_kernel_too_old
from cove.linux.interpreter import find_interpreter
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
        return judge_setup(found, can_make=_can_make_environments())
    return asyncio.run(_try_context(name, path))


def judge_setup(found: str, *, can_make: bool) -> Check:
    """Say how to get an environment; Debian and Ubuntu package the module that makes them apart from Python."""
    advice = "`cove setup` makes one: IPython, numpy, pandas, matplotlib."
    return warning("Python contexts", found, advice if can_make else f"{install('python3-venv')} Then {advice}")


def _can_make_environments() -> bool:
    found = find_interpreter(0 if is_root() else None)
    if found is None:
        return False
    question = [found.path, "-I", "-c", "import ensurepip, venv"]
    return subprocess.run(question, check=False, capture_output=True, timeout=_TRIAL_SECONDS).returncode == 0


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


def check_snapshots() -> Check:
    """Say whether what a sandbox writes becomes a layer at once, and try it."""
    home = default_home()
    reason = explain_copies(home) if home.is_dir() else "there is no state directory"
    check = judge_snapshots(reason, can_upgrade=is_kernel_too_old())
    return asyncio.run(_try_snapshot(check))


async def _try_snapshot(check: Check) -> Check:
    """Begin a sandbox where another one was: layers are shown by a helper that enters its namespaces."""
    try:
        async with AsyncSandbox.create() as sandbox:
            await sandbox.files.write("note", "kept")
            snapshot = await sandbox.snapshot()
            try:
                async with AsyncSandbox.create(snapshot=snapshot.id) as copy:
                    kept = await copy.files.read_text("note")
            finally:
                await snapshot.delete()
    except SandboxUnavailable:
        return warning(check.name, f"{check.found}; not tried: no sandbox starts", "See the other checks.")
    except (CoveError, OSError) as error:
        return missing(check.name, "a sandbox cannot begin on one", f"{error}. See the other checks.")
    assert kept == "kept"
    return check


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
