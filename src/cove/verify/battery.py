"""Run every attempt in a real sandbox and, as its control, once more where nothing stops it."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from cove import AsyncSandbox
from cove.errors import SandboxUnavailable
from cove.local.state import default_home
from cove.local.threads import in_thread
from cove.model import Limits, NetworkPolicy, NetworkRule
from cove.runtime.interpreters import find_python_environment
from cove.verify import agent, file_api, images, inside, lifecycle, mounts, neighbours, state  # noqa: F401  # they enter their probes
from cove.verify.findings import Attempt, Finding, Verdict, judge
from cove.verify.inside.harness import BLOCKED
from cove.verify.outside import run_outside
from cove.verify.system import system_of_the_host

PLAIN_AREAS = "system calls,files,/proc and /sys,processes,privilege,network"
LIMITED_AREAS = "resources"
POLICY_AREAS = "network policy"
ROOT_AREA = "root"
# What root may do with what is the sandbox's own: the attempts of the area `root` try how far that goes.
OWN_TO_ROOT = frozenset(
    (
        *("become_root", "become_another_user", "change_groups", "have_capabilities", "use_a_set_user_id_program"),
        *("give_a_file_away", "set_file_capabilities", "set_a_secure_bit", "write_etc"),
        "be_the_user_of_the_host",  # an emulated root is 0 of the namespace above, too
    )
)
AS_ROOT = "_as_root"
LIMITS = Limits(memory=96 << 20, pids=100, cpus=0.5, disk=24 << 20, inodes=1000, open_files=256)

LIMIT_OF = {
    "use_memory": "memory",
    "use_memory_by_a_file": "memory",
    "use_memory_by_shared_pages": "memory",
    "burn_the_processor": "cpus",
}

_SECONDS = 120
_PACKAGE = ("cove", "verify", "inside")
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); import runpy; runpy.run_module('cove.verify.inside', {}, '__main__')"
)
_CANARY_PROGRAM = "import sys; sys.stdin.read()"


async def verify(facts: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Try everything on a prepared host; each finding comes when its part of the battery has run."""
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create(isolation="none") as control:
        async for finding in _compare(sandbox, control, {**facts, "areas": PLAIN_AREAS}):
            yield finding
    async with AsyncSandbox.create(limits=LIMITS) as sandbox, AsyncSandbox.create(isolation="none") as control:
        async for finding in _compare(sandbox, control, {**facts, "areas": LIMITED_AREAS}):
            yield finding
    # The host has a service on that port: an address that the policy does not name must not lead to it.
    policy = NetworkPolicy(allow=[NetworkRule(f"cove-verify.invalid:{facts['port']}", private=True)])
    async with AsyncSandbox.create(network=policy) as sandbox, AsyncSandbox.create(isolation="none") as control:
        async for finding in _compare(sandbox, control, {**facts, "areas": POLICY_AREAS}):
            yield finding
    async for finding in verify_root(facts):
        yield finding
    async for finding in run_outside(facts):
        yield finding


async def verify_root(facts: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Try it all once more as root of a system that is the sandbox's own, where this machine can show one."""
    try:
        async for finding in _verify_root(facts):
            yield finding
    except SandboxUnavailable as error:
        what = "whatever is tried, once more as root of an image"
        yield Finding(area=ROOT_AREA, name=ROOT_AREA, what=what, verdict=Verdict.NOT_TESTABLE, why=str(error))


async def _verify_root(facts: Mapping[str, str]) -> AsyncIterator[Finding]:
    async with system_of_the_host() as image:
        for areas, limits in ((f"{PLAIN_AREAS},{ROOT_AREA}", Limits()), (LIMITED_AREAS, LIMITS)):
            async with (
                AsyncSandbox.create(image=image, user="root", limits=limits) as sandbox,
                AsyncSandbox.create(isolation="none") as control,
            ):
                async for finding in _compare(sandbox, control, {**facts, "areas": areas}):
                    if finding.name not in OWN_TO_ROOT:
                        yield _as_root(finding)


def _as_root(finding: Finding) -> Finding:
    """Name an attempt that was made as root, unless nobody else makes it."""
    if finding.area == ROOT_AREA:
        return finding
    return msgspec.structs.replace(finding, name=f"{finding.name}{AS_ROOT}", area=f"{finding.area}, as root")


async def _compare(sandbox: AsyncSandbox, control: AsyncSandbox, facts: Mapping[str, str]) -> AsyncIterator[Finding]:
    attempts = await run_inside(sandbox, facts)
    controls = await run_inside(control, facts)
    warnings = (await sandbox.info()).warnings
    for name, proof in controls.items():
        yield _excuse(judge(attempts.get(name) or _ended(proof), proof), warnings)


def _excuse(finding: Finding, warnings: Sequence[str]) -> Finding:
    """A limit that the sandbox itself says it cannot hold on this machine is not one that was broken."""
    limit = LIMIT_OF.get(finding.name)
    for warning in warnings:
        if finding.verdict is Verdict.OPEN and limit is not None and f"limit {limit} " in warning:
            return msgspec.structs.replace(finding, verdict=Verdict.NOT_TESTABLE, why=warning)
    return finding


def _ended(proof: Attempt) -> Attempt:
    """Judge an attempt that was ended with all that runs, as who passes a limit that is held by measuring is."""
    return Attempt(
        area=proof.area, name=proof.name, what=proof.what, verdict=BLOCKED, why="everything that ran was ended"
    )


async def run_inside(sandbox: AsyncSandbox, facts: Mapping[str, str]) -> dict[str, Attempt]:
    """Copy the attempts in, run them, and give what they said."""
    info = await sandbox.info()
    work = (await sandbox.exec("pwd")).stdout.strip()
    is_measured = any("measuring" in warning for warning in info.warnings)
    told = {**facts, "work": work, "linger_seconds": "2" if is_measured else "0"}
    await _copy_in(sandbox, work)
    command = ["/usr/bin/python3", "-I", "-c", _START, work]
    result = await sandbox.exec(command, stdin=msgspec.json.encode(told), timeout=_SECONDS)
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    attempts = [msgspec.json.decode(line, type=Attempt) for line in lines]
    if not attempts:
        result.check()
    return {attempt.name: attempt for attempt in attempts}


async def _copy_in(sandbox: AsyncSandbox, work: str) -> None:
    target = "/".join((work, *_PACKAGE))
    await sandbox.files.mkdir(target, parents=True)
    await sandbox.files.write(f"{work}/cove/__init__.py", b"")
    await sandbox.files.write(f"{work}/cove/verify/__init__.py", b"")
    for name, source in (await in_thread(_sources)).items():
        await sandbox.files.write(f"{target}/{name}", source)


def _sources() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(inside.__file__).parent.glob("*.py")}


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
            "hostname": socket.gethostname(),
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
