"""Attempts on kept state: layers of a neighbour, a sealed layer, a volume, and a pause. Each sees what it looks for."""

import os
import time

from cove import AsyncSandbox, AsyncVolume, VolumeMount
from cove.local.state import default_home
from cove.local.threads import in_thread
from cove.verify.inside.harness import Blocked
from cove.verify.outside import Facts, NothingToSee, outside_probe

AREA = "state"

# Every directory that a mount names, and what lies where mounts are put together.
_SEARCH = r"""
import os, re, sys
secret, tops = sys.argv[1], {"/", "/run", "/tmp", "/oldroot", "/newroot", "/proc/1/root", "/proc/1/cwd", *sys.argv[2:]}
for line in open("/proc/self/mountinfo"):
    tops.update(re.findall(r"/[^ ,:=]+", line))
for top in tops:
    for folder, _, names in os.walk(top):
        if folder.startswith("/proc/") and top == "/":
            continue
        if secret in names:
            print("found", os.path.join(folder, secret))
"""
# Holds the workspace in every way that there is, and writes by each of them when it is told to.
_HOLD = r"""
import mmap, os, sys
os.chdir("/workspace")
with open("held", "w") as file:
    file.write("before" + " " * 4090)
folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
file = os.open("held", os.O_RDWR)
mapped = mmap.mmap(file, 4096)
print("ready", flush=True)
sys.stdin.readline()
for attempt in (
    lambda: os.close(os.open("by-directory", os.O_CREAT | os.O_WRONLY, dir_fd=folder)),
    lambda: os.close(os.open(f"/proc/self/fd/{folder}/by-proc", os.O_CREAT | os.O_WRONLY)),
    lambda: os.close(os.open("by-cwd", os.O_CREAT | os.O_WRONLY)),
    lambda: os.pwrite(file, b"after!", 0),
    lambda: mapped.__setitem__(slice(6, 11), b"after"),
):
    try:
        attempt()
    except OSError:
        pass
print("done", flush=True)
"""
_STAMP = """
import time
while True:
    print('at', time.monotonic_ns(), flush=True)
    time.sleep(0.002)
"""


@outside_probe(AREA, "layers of a neighbour can be reached", is_own_control=True)
async def reach_the_neighbours_layers(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await neighbour.exec(["touch", facts["secret"]])
    made = [await neighbour.snapshot(), await sandbox.snapshot()]
    try:
        layers = default_home() / "layers"
        kept = await in_thread(lambda: [str(path) for path in layers.glob(f"*/data/workspace/{facts['secret']}")])
        if not kept:
            raise NothingToSee("the neighbour's layer is not on disk")
        command = ["/usr/bin/python3", "-I", "-c", _SEARCH, facts["secret"], *map(os.path.dirname, kept)]
        found = (await sandbox.exec(command, timeout=60)).stdout
    finally:
        for each in made:
            await each.delete()
    if not found:
        raise Blocked("no mount shows it")
    return found


@outside_probe(AREA, "a snapshot can be written to by who held the files open", is_own_control=True)
async def write_through_a_sealed_layer(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    holder = await sandbox.start_process(["/usr/bin/python3", "-I", "-c", _HOLD], stdin=True)
    await holder.wait_for_log("ready", timeout=20)
    snapshot = await sandbox.snapshot()
    try:
        await holder.write_stdin(b"go\n")
        await holder.wait_for_log("done", timeout=20)
        if "by-cwd" not in (await sandbox.exec("ls")).stdout:
            raise NothingToSee("nothing could be written at all")
        async with AsyncSandbox.create(snapshot=snapshot) as copy:
            seen = (await copy.exec("ls; cat held")).stdout.split()
    finally:
        await snapshot.delete()
    if seen == ["held", "before"]:
        raise Blocked("it is as it was")
    return f"it has {seen}"


@outside_probe(AREA, "files of a copy can be changed by the sandbox that it was made of", is_own_control=True)
async def write_to_a_copy(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await sandbox.exec("mkdir d; echo before > d/f")
    (copy,) = await sandbox.fork()
    try:
        await sandbox.exec("echo after > d/f; rm -r d; echo planted > p")
        if (await sandbox.exec("ls")).stdout != "p\n":
            raise NothingToSee("nothing could be written at all")
        if (await copy.exec("cat d/f; ls")).stdout == "before\nd\n":
            raise Blocked("it has its own")
    finally:
        await copy.destroy()
    return "it was changed"


@outside_probe(AREA, "a volume that is mounted read-only can be written to", is_own_control=True)
async def write_to_a_read_only_volume(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    name = f"verify-{facts['secret'][-12:]}"
    volume = await AsyncVolume.create(name)
    try:
        await sandbox.mounts.add(VolumeMount(volume=name, target="/data", read_only=False))
        await neighbour.mounts.add(VolumeMount(volume=name, target="/data", read_only=True))
        await sandbox.exec("echo before > /data/f; chmod 777 /data /data/f")
        if "before" not in (await neighbour.exec("cat /data/f")).stdout:
            raise NothingToSee("the volume is not shared")
        await neighbour.exec("echo after > /data/f; mount -o remount,rw /data; echo after > /data/f; rm /data/f")
        seen = (await sandbox.exec("cat /data/f")).stdout
    finally:
        for each in (sandbox, neighbour):
            await each.mounts.remove("/data")
        await volume.delete()
    if seen == "before\n":
        raise Blocked("it is as it was")
    return "it was written to"


@outside_probe(AREA, "code goes on while its sandbox is paused", is_own_control=True)
async def go_on_while_paused(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    stamper = await sandbox.start_process(["/usr/bin/python3", "-I", "-c", _STAMP])
    await sandbox.start_process("while :; do kill -CONT -1; sleep 0.01; done")
    await stamper.wait_for_log("at ", timeout=20)
    await sandbox.pause()
    begun = time.monotonic_ns()
    await in_thread(time.sleep, 0.3)
    ended = time.monotonic_ns()
    await sandbox.resume()
    await stamper.kill("KILL")
    stamps = [int(line.split()[1]) for line in (await stamper.output()).stdout.splitlines() if line.startswith("at ")]
    if not stamps or stamps[0] > begun:
        raise NothingToSee("it did not run before")
    if any(begun < stamp < ended for stamp in stamps):
        return "it wrote the time"
    raise Blocked("no time passed inside")
