"""A snapshot is one moment: several processes stamp a counter, by write and by mapped memory, all the time."""

import pytest

from cove import AsyncSandbox

pytestmark = pytest.mark.anyio

# Each takes the next number and stamps it, first in one file and then in the other, while it has the turn of all.
WRITER = r"""
import fcntl, mmap, os, struct, sys
kind, turn = sys.argv[1], os.open("/dev/shm/turn", os.O_RDWR | os.O_CREAT)
os.ftruncate(turn, 8)
counter = mmap.mmap(turn, 8)
files = [os.open(path, os.O_RDWR | os.O_CREAT) for path in ("/workspace/first", "/home/user/second")]
for file in files:
    os.ftruncate(file, 8) if os.fstat(file).st_size < 8 else None
maps = [mmap.mmap(file, 8) for file in files]
if kind == "mapped":
    for file in files:
        os.close(file)
print("begun", flush=True)
while True:
    fcntl.flock(turn, fcntl.LOCK_EX)
    number = struct.unpack("Q", counter[:8])[0] + 1
    counter[:8] = struct.pack("Q", number)
    for at in range(2):
        if kind == "mapped":
            maps[at][:8] = struct.pack("Q", number)
        else:
            os.pwrite(files[at], struct.pack("Q", number), 0)
    fcntl.flock(turn, fcntl.LOCK_UN)
"""
READ = """
import struct
for path in ("/workspace/first", "/home/user/second"):
    print(struct.unpack("Q", open(path, "rb").read())[0])
"""
NOW = "import struct; print(struct.unpack('Q', open('/dev/shm/turn', 'rb').read())[0])"


@pytest.mark.parametrize("kinds", [["mapped"], ["mapped", "written", "mapped"]], ids=["one", "several"])
async def test_a_snapshot_is_one_moment_of_all_that_write(kinds: list[str]) -> None:
    async with AsyncSandbox.create() as sandbox:
        writers = [await sandbox.start_process(["python3", "-I", "-c", WRITER, kind], cwd="/") for kind in kinds]
        for writer in writers:
            await writer.wait_for_log("begun")
        made = []
        for _ in range(3):
            before = int((await sandbox.exec(["python3", "-I", "-c", NOW], cwd="/")).stdout)
            snapshot = await sandbox.snapshot()
            after = int((await sandbox.exec(["python3", "-I", "-c", NOW], cwd="/")).stdout)
            made.append((before, snapshot, after))
        for writer in writers:
            await writer.kill("KILL")
        for before, snapshot, after in made:
            async with AsyncSandbox.create(snapshot=snapshot) as copy:
                first, second = map(int, (await copy.exec(["python3", "-I", "-c", READ])).stdout.split())
            assert 0 <= first - second <= 1, "the second is stamped after the first, and before the next"
            assert before - 1 <= second <= first <= after
            await snapshot.delete()
