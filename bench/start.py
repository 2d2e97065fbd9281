"""Cold start: from `create` to the result of the first command."""

import time
from functools import partial

from bench.harness import Figure, Plan, Unit, at_most, interleave, timed_blocking
from bench.jails import full_jail, plain_jail, python, run_jail
from cove import AsyncSandbox


async def run(plan: Plan) -> list[Figure]:
    """A sandbox against the bare jail it stands on."""
    with full_jail() as run_in_full:
        subject, plain, same = await interleave(
            [
                _create_and_exec,
                timed_blocking(partial(run_jail, [*plain_jail(), *python("pass")])),
                timed_blocking(partial(run_in_full, python("pass"))),
            ],
            repetitions=plan.times(40, 12),
            warm_up=2,
        )
    name = "cold start: create, first exec"
    return [
        Figure(
            name=name, unit=Unit.SECONDS, subject=subject, floor=plain, floor_name="plain bwrap", target=at_most(2.5)
        ),
        Figure(name=name, unit=Unit.SECONDS, subject=subject, floor=same, floor_name="bwrap, our arguments"),
    ]


async def _create_and_exec() -> float:
    began = time.perf_counter()
    sandbox = await AsyncSandbox.create()
    try:
        (await sandbox.exec("true")).check()
        return time.perf_counter() - began
    finally:
        await sandbox.destroy()
