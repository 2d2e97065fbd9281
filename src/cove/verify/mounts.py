"""Attempts on mounts: a link in the place of a source, or in the way to a target, when a sandbox is started."""

from pathlib import Path

from cove import AsyncSandbox, Mount
from cove.errors import CoveError
from cove.local.threads import in_thread
from cove.verify.inside.harness import Blocked
from cove.verify.outside import Facts, NothingToSee, outside_probe

AREA = "mounts"


def _prepare(facts: Facts, name: str) -> Path:
    """A directory that every sandbox can write, for one attempt, beside the canary."""
    made = Path(facts["folder"], name)
    for path in (made, made / "inner"):
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
    return made


def _mount(source: Path, target: str) -> Mount:
    return Mount(source=str(source), target=target, read_only=False)


@outside_probe(AREA, "a link planted in a writable mount leads another sandbox's mount", is_own_control=True)
async def plant_a_link_for_a_source(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    shared = await in_thread(_prepare, facts, "source")
    async with AsyncSandbox.create(mounts=[_mount(shared, "/data")]) as planter:
        planted = await planter.exec(["ln", "-sfn", facts["folder"], "/data/link"])
    if not planted.ok:
        raise NothingToSee(planted.stderr)
    async with AsyncSandbox.create(mounts=[_mount(shared / "link", "/data")]) as follower:
        if facts["secret"] not in (await follower.exec("cat /data/canary")).stdout:
            raise Blocked("it shows another place")
    return "the canary was read"


@outside_probe(AREA, "a link planted in the way to a target leads a mount out at a restart", is_own_control=True)
async def plant_a_link_for_a_target(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    outside = await in_thread(_prepare, facts, "outside")
    shared = await in_thread(_prepare, facts, "target")
    async with AsyncSandbox.create(mounts=[_mount(shared, "/workspace/in/made")]) as planter:
        # While it builds a jail, bubblewrap sees the host's files below /oldroot.
        planted = await planter.exec(["bash", "-c", f"mv in aside && ln -s /oldroot{outside} in"])
        if not planted.ok:
            raise NothingToSee(planted.stderr)
        try:
            await planter.restart()
        except CoveError as error:
            refusal = str(error)
        else:
            refusal = "the mount stands elsewhere inside"
    if await in_thread((outside / "made").exists):
        return "a directory was made on the host"
    raise Blocked(refusal)


@outside_probe(AREA, "a mount that is led over the agent's directory puts other code in its place", is_own_control=True)
async def mount_over_the_agent(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    shared = await in_thread(_prepare, facts, "agent")
    await in_thread((shared / "init.pyc").write_bytes, b"")
    async with AsyncSandbox.create(mounts=[_mount(shared, "/workspace/in/agent")]) as planter:
        planted = await planter.exec(["bash", "-c", "mv in aside && ln -s /newroot/run/cove in"])
        if not planted.ok:
            raise NothingToSee(planted.stderr)
        try:
            await planter.restart()
        except CoveError as error:
            if "symbolic link" in str(error):
                raise Blocked(str(error)) from None
            return f"the agent did not start: {error}"
        raise Blocked("the agent is still Cove's")


@outside_probe(
    AREA, "a link planted in the way to a target leads a mount on a running sandbox away", is_own_control=True
)
async def plant_a_link_for_a_running_mount(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    shared = await in_thread(_prepare, facts, "running")
    await sandbox.exec("mkdir plain && ln -s /home/user in")
    try:
        await sandbox.mounts.add(_mount(shared, "/workspace/plain/made"))
    except CoveError as error:
        raise NothingToSee(f"nothing can be mounted on it: {error}") from None
    await sandbox.mounts.add(_mount(shared, "/workspace/in/made"))
    if "inner" in (await sandbox.exec("ls /home/user/made")).stdout:
        return "it is mounted where the link leads"
    raise Blocked("it is mounted elsewhere")
