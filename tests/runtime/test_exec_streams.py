"""The streams of a command can be opened again by name, as scripts do."""

import pytest

from cove import AsyncSandbox

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("command", "stdout", "stderr"),
    [
        ("echo x > /dev/stdout", "x\n", ""),
        ("echo x > /dev/stderr", "", "x\n"),
        ("echo x | tee /dev/stderr", "x\n", "x\n"),
        ("echo x >> /proc/self/fd/2", "", "x\n"),
        ("cat /dev/stdin", "given", ""),
        ("cat < /proc/self/fd/0", "given", ""),
        ("cat <(echo substitution)", "substitution\n", ""),
    ],
)
async def test_a_stream_can_be_opened_by_its_name(command: str, stdout: str, stderr: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(command, stdin="given")
    assert (result.stdout, result.stderr, result.exit_code) == (stdout, stderr, 0)


async def test_a_command_that_reads_its_own_output_back_harms_only_itself() -> None:
    async with AsyncSandbox.create() as sandbox:
        thief = (
            "import os\nr = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)\n"
            "for _ in range(2000):\n  os.write(1, b'x' * 9)\n  try: os.read(r, 5)\n  except BlockingIOError: pass"
        )
        result = await sandbox.exec(["python3", "-c", thief], timeout=30)
        assert result.exit_code == 0
        assert len(result.stdout) <= 18_000
        assert (await sandbox.exec("echo on")).stdout == "on\n"


async def test_the_only_descriptors_a_command_has_are_its_streams() -> None:
    async with AsyncSandbox.create() as sandbox:
        listing = await sandbox.exec(["python3", "-c", "import os; print(sorted(map(int, os.listdir('/dev/fd'))))"])
        assert listing.stdout == "[0, 1, 2, 3]\n"
        state = await sandbox.exec("grep -E '^(SigBlk|SigIgn|SigCgt)' /proc/self/status; ps -o sid= -p $$; echo $$")
    lines = state.stdout.split()
    internal = 1 << 31 | 1 << 32  # the two signals glibc keeps for itself: nptl(7), ignored by posix_spawn
    assert int(lines[1], 16) == 0
    assert int(lines[3], 16) & ~internal == 0
    assert lines[-1] == lines[-2]
