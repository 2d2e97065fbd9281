"""One stateless command against the shell itself."""

from bench.harness import Figure, Plan, Unit, at_most, interleave, timed, timed_blocking
from bench.shell import NAME, run_shell
from cove import AsyncSandbox

_IDLE_SECONDS = 0.1


async def run(plan: Plan) -> list[Figure]:
    """Back to back, and with idleness before every call."""
    async with AsyncSandbox.create() as sandbox:
        candidates = [timed(lambda: sandbox.exec("true")), timed_blocking(run_shell)]
        busy = await interleave(candidates, repetitions=plan.times(600, 200), warm_up=20)
        idle = await interleave(candidates, repetitions=plan.times(100, 30), warm_up=3, idle=_IDLE_SECONDS)
    return [
        Figure(name=name, unit=Unit.SECONDS, subject=subject, floor=floor, floor_name=NAME, target=at_most(1.35))
        for name, (subject, floor) in (("exec true, back to back", busy), ("exec true, after 100 ms idle", idle))
    ]
