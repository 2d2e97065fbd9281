"""Run every attempt in a real sandbox and, as its control, once more where nothing stops it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec

from cove import AsyncSandbox
from cove.local.threads import in_thread
from cove.model import Limits
from cove.verify import agent, file_api, inside, lifecycle, mounts, neighbours  # noqa: F401  # they enter their probes
from cove.verify.findings import Attempt, Finding, Verdict, judge
from cove.verify.inside.harness import BLOCKED
from cove.verify.outside import run_outside

PLAIN_AREAS = "system calls,files,/proc and /sys,processes,privilege,network"
LIMITED_AREAS = "resources"
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


async def verify(facts: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Try everything on a prepared host; each finding comes when its part of the battery has run."""
    async with AsyncSandbox.create() as sandbox, AsyncSandbox.create(isolation="none") as control:
        async for finding in _compare(sandbox, control, {**facts, "areas": PLAIN_AREAS}):
            yield finding
    async with AsyncSandbox.create(limits=LIMITS) as sandbox, AsyncSandbox.create(isolation="none") as control:
        async for finding in _compare(sandbox, control, {**facts, "areas": LIMITED_AREAS}):
            yield finding
    async for finding in run_outside(facts):
        yield finding


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
    """Who passes a limit that is held by measuring is ended with all that runs, and says nothing more."""
    return Attempt(
        area=proof.area, name=proof.name, what=proof.what, verdict=BLOCKED, why="everything that ran was ended"
    )


async def run_inside(sandbox: AsyncSandbox, facts: Mapping[str, str]) -> dict[str, Attempt]:
    """Copy the attempts in, run them, and give what they said."""
    info = await sandbox.info()
    work = (await sandbox.exec("pwd")).stdout.strip()
    is_measured = any("measuring" in warning for warning in info.warnings)
    told = {**facts, "work": work, "patience": "2" if is_measured else "0"}
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
