"""A program that is killed at any step of a snapshot, a restore or a removal leaves whole snapshots and no garbage."""

import json
import os
from pathlib import Path

import pytest
from support.programs import program, read_line, run_program

# Kills this very program before or after a call of a method, once a first snapshot is there.
PROGRAM = """
import asyncio, functools, importlib, os, signal, sys
from cove import AsyncSandbox

where, moment = {step!r}.split(), {moment!r}

def arm():
    owner = importlib.import_module(where[0])
    *parents, name = where[1].split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    function = getattr(owner, name)

    def die(now):
        if now == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(*args, **kwargs):
        die("before")
        result = function(*args, **kwargs)
        die("after")
        return result

    setattr(owner, name, functools.wraps(function)(wrapped))

async def main():
    sandbox = await AsyncSandbox.create()
    await sandbox.exec("echo 1 > f")
    first = await sandbox.snapshot(name="1")
    await sandbox.exec("echo 2 > f")
    arm()
    second = await sandbox.snapshot(name="2")
    await sandbox.exec("echo 3 > f")
    process = await sandbox.start_process("exec 3>> f; echo held; sleep 1000")
    await process.wait_for_log("held")
    await sandbox.snapshot(name="3")
    copies = await sandbox.fork(2)
    await sandbox.restore(first)
    await sandbox.begin_transaction()
    await second.delete()
    await sandbox.destroy()

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
print("not reached", flush=True)
"""
NEXT = """
import asyncio, json
from cove import AsyncSandbox, AsyncSnapshot

async def main():
    found = {}
    for info in await AsyncSnapshot.list():
        async with AsyncSandbox.create(snapshot=info.id) as sandbox:
            found[info.name] = (await sandbox.exec("cat f")).stdout
        await (await AsyncSnapshot.get(info.id)).delete()
    print(json.dumps(found))

asyncio.run(main())
"""
STEPS = [
    "cove.layers.place PlaceLayers.make_upper",
    "cove.layers.place PlaceLayers.commit",
    "cove.layers.place PlaceLayers.seal",
    "cove.layers.place PlaceLayers.drop",
    "cove.layers.store LayerStore.adopt",
    "cove.layers.store LayerStore.building",
    "cove.layers.store LayerStore.keep",
    "cove.layers.store LayerStore.forget",
    "cove.layers.store LayerStore._set_aside",
    "cove.runtime.attachment Attachment.perform",
    "cove.runtime.layers SandboxLayers._copy",
]


# The others take a minute.
QUICK = [("commit", "before"), ("commit", "after"), ("adopt", "before"), ("keep", "before")]
CASES = [
    pytest.param(step, moment, id=f"{name}-{moment}", marks=[] if (name, moment) in QUICK else pytest.mark.slow)
    for step in STEPS
    for moment in ("before", "after")
    for name in [step.rpartition(".")[2]]
]


@pytest.mark.parametrize(("step", "moment"), CASES)
def test_what_is_left_is_whole(step: str, moment: str, other_home: Path) -> None:
    with program(PROGRAM.format(step=step, moment=moment), other_home) as victim:
        assert read_line(victim) == "ready"
        assert victim.stdin is not None
        victim.stdin.write("go\n")
        victim.stdin.flush()
        assert victim.wait(60) == -9
    found = json.loads(run_program(NEXT, other_home))
    assert found["1"] == "1\n"
    assert all(content == f"{name}\n" for name, content in found.items() if name.isdigit())
    assert os.listdir(other_home / "layers") == []
