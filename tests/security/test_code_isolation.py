"""Contexts see nothing of each other. The probe is first shown to find what there is to find."""

import asyncio
import random

import pytest
from support.executors import executors, needs_python

from cove import AsyncSandbox
from cove.api import CodeContext

pytestmark = [pytest.mark.anyio, needs_python]

CONTEXTS = 16

# Lists what it finds of contexts with another number.
PROBE = """
import os, json
(lambda own: sorted(
    {{name for name in globals() if name.startswith('secret_') and name != f'secret_{{own}}'}}
    | {{name for name in vars(json) if name.startswith('patched_') and name != f'patched_{{own}}'}}
    | {{name for name in os.environ if name.startswith('VARIABLE_') and name != f'VARIABLE_{{own}}'}}
    | {{path for path in [os.getcwd()] if path.startswith('/tmp/place_') and path != f'/tmp/place_{{own}}'}}
    | {{path for path in map(os.readlink, [f'/proc/self/fd/{{fd}}' for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{{fd}}')])
       if path.startswith('/tmp/held_') and path != f'/tmp/held_{{own}}'}}
))({own})
"""  # noqa: E501
LEAVE = """
import os, json
secret_{own} = {own}
json.patched_{own} = True
os.environ['VARIABLE_{own}'] = 'x'
os.makedirs('/tmp/place_{own}', exist_ok=True); os.chdir('/tmp/place_{own}')
held = open('/tmp/held_{own}', 'w')
"""
# What a context must still find of itself.
OWN = """
import os, json
(secret_{own}, json.patched_{own}, os.environ['VARIABLE_{own}'], os.getcwd(), held.name, held.closed)
"""


async def leave_and_probe(context: CodeContext, own: int, times: int = 1) -> None:
    assert (await context.run(PROBE.format(own=own))).text == "[]"
    for _ in range(times):
        assert (await context.run(LEAVE.format(own=own))).error is None
    assert (await context.run(PROBE.format(own=own))).text == "[]"
    expected = (own, True, "x", f"/tmp/place_{own}", f"/tmp/held_{own}", False)
    assert (await context.run(OWN.format(own=own))).text == repr(expected)


async def test_the_probe_finds_everything_that_another_has_left_in_the_same_context() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await leave_and_probe(context, 1)
        found = (await context.run(PROBE.format(own=2))).text
        assert found == "['/tmp/held_1', '/tmp/place_1', 'VARIABLE_1', 'patched_1', 'secret_1']"
        with pytest.raises(AssertionError):
            await leave_and_probe(context, 2)


async def test_sixteen_contexts_see_nothing_of_each_other_however_often_they_run() -> None:
    async with AsyncSandbox.create() as sandbox:
        contexts = [await sandbox.create_code_context() for _ in range(CONTEXTS)]
        for own, context in enumerate(contexts):
            await leave_and_probe(context, own)
        for own, context in enumerate(contexts):
            assert (await context.run(PROBE.format(own=own))).text == "[]"
        many = [await sandbox.create_code_context() for _ in range(CONTEXTS)]
        await asyncio.gather(*(leave_and_probe(each, CONTEXTS + own, 50) for own, each in enumerate(many)))
        found = await asyncio.gather(
            *(context.run(PROBE.format(own=own)) for own, context in enumerate([*contexts, *many]))
        )
        assert {execution.text for execution in found} == {"[]"}
        pids = await asyncio.gather(*(each.run("import os; os.getpid()") for each in [*contexts, *many]))
        assert sorted(int(each.text or "") for each in pids) == await executors(sandbox)


async def test_chance_differs_from_context_to_context() -> None:
    code = "import random, numpy, uuid; print(random.random(), numpy.random.rand(), uuid.uuid4())"
    async with AsyncSandbox.create() as sandbox:
        contexts = await asyncio.gather(*(sandbox.create_code_context() for _ in range(4)))
        values = [(await each.run(code)).stdout.split() for each in contexts]
        assert [len(set(column)) for column in zip(*values, strict=True)] == [4, 4, 4]


async def test_twenty_runs_on_one_context_take_turns_in_the_order_they_came() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.run("order = []")
        runs = [context.run(f"order.append({n}); print({n}); len(order)") for n in range(20)]
        executions = await asyncio.gather(*runs)
        assert (await context.run("order")).text == str(list(range(20)))
        for number, execution in enumerate(executions):
            assert (execution.text, execution.stdout) == (str(number + 1), f"{number}\n")
            assert execution.execution_count == number + 2


async def test_twenty_contexts_made_at_once_run_twenty_times_each_in_parallel() -> None:
    async with AsyncSandbox.create() as sandbox:
        contexts = await asyncio.gather(*(sandbox.create_code_context() for _ in range(20)))
        assert len(await executors(sandbox)) == 20

        async def work(context: CodeContext, seed: int) -> None:
            await context.run("total = 0")
            total = 0
            for number in random.Random(seed).sample(range(10**9), 20):
                total += number
                execution = await context.run(f"total += {number}; print({number}); total")
                assert (execution.text, execution.stdout) == (str(total), f"{number}\n")

        await asyncio.gather(*(work(context, seed) for seed, context in enumerate(contexts)))
        await asyncio.gather(*(context.delete() for context in contexts))
        assert await executors(sandbox) == []
        assert await sandbox.list_code_contexts() == []


async def test_code_without_a_context_never_meets_what_others_left() -> None:
    async with AsyncSandbox.create() as sandbox:
        for own in range(3):
            assert (await sandbox.run_code(PROBE.format(own=own))).text == "[]"
            execution = await sandbox.run_code(LEAVE.format(own=own) + "os.getpid()")
            assert execution.execution_count == 1
        pids = await asyncio.gather(*(sandbox.run_code("import os; os.getpid()") for _ in range(10)))
        assert len({each.text for each in pids}) == 10
        await sandbox.set_env({"LATER": "set"})
        assert (await sandbox.run_code("import os; os.environ.get('LATER')")).text == "'set'"
        assert await sandbox.list_code_contexts() == []
        assert len(await executors(sandbox)) <= 1
