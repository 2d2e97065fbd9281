"""What a command prints is what the caller gets."""

import asyncio
import subprocess
import sys

import pytest

from cove import AsyncSandbox

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("command", "stdout", "stderr"),
    [
        (r"printf 'a\0b\0'", b"a\0b\0", b""),
        (r"printf '\xff\xfe\x80'; printf '\xc3' >&2", b"\xff\xfe\x80", b"\xc3"),
        (r"printf 'a\r\nb\rc'", b"a\r\nb\rc", b""),
        ("printf x; printf y >&2; printf z", b"xz", b"y"),
        ("printf '\n\n'", b"\n\n", b""),
        ("echo out; echo err >&2; exec 1>&2; echo moved", b"out\n", b"err\nmoved\n"),
        ("echo closed; exec 1>&- 2>&-; sleep 0.05; true", b"closed\n", b""),
    ],
)
async def test_output_comes_through_byte_for_byte_and_by_stream(command: str, stdout: bytes, stderr: bytes) -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(command)
    assert (result.stdout_bytes, result.stderr_bytes, result.exit_code) == (stdout, stderr, 0)


async def test_every_byte_value_comes_through() -> None:
    data = bytes(range(256)) * 4096
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("tee /dev/stderr", stdin=data)
    assert result.stdout_bytes == result.stderr_bytes == data


async def test_a_line_of_a_megabyte_comes_through_whole() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(f"head -c {MEGABYTE} /dev/zero | tr '\\0' x")
    assert result.stdout_bytes == b"x" * MEGABYTE
    assert not result.truncated


async def test_the_last_words_of_a_command_are_never_lost() -> None:
    async with AsyncSandbox.create() as sandbox:
        for size in (1, 4096, 65536, 65537, 300_000):
            result = await sandbox.exec(["head", "-c", str(size), "/dev/zero"])
            assert len(result.stdout_bytes) == size
        result = await sandbox.exec("printf end; kill -9 $$")
        assert (result.stdout, result.outcome) == ("end", "signaled")


async def test_max_output_keeps_the_beginning_and_the_end_of_each_stream() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec("seq 1 10000; echo few >&2", max_output=101)
        whole = "".join(f"{number}\n" for number in range(1, 10001))
        assert result.stdout == whole[:51] + whole[-50:]
        assert result.stderr == "few\n"
        assert result.truncated
        exact = await sandbox.exec("printf 12345", max_output=5)
        assert (exact.stdout, exact.truncated) == ("12345", False)
        nothing = await sandbox.exec("printf 12345; exit 3", max_output=0)
        assert (nothing.stdout, nothing.truncated, nothing.exit_code) == ("", True, 3)


async def test_sixteen_megabytes_of_each_stream_are_kept_by_default() -> None:
    limit = 16 * MEGABYTE
    async with AsyncSandbox.create() as sandbox:
        result = await sandbox.exec(f"head -c {limit} /dev/zero; head -c {limit + 1} /dev/zero >&2")
    assert (len(result.stdout_bytes), len(result.stderr_bytes), result.truncated) == (limit, limit, True)


GIGABYTE = """
import asyncio, resource, sys
from cove import AsyncSandbox

async def main():
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("true")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await sandbox.exec("head -c 1073741824 /dev/zero")
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(len(result.stdout_bytes), result.truncated, result.exit_code, (after - before) // 1024)

asyncio.run(main())
"""


async def test_a_gigabyte_in_one_line_costs_bounded_memory() -> None:
    answer = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", GIGABYTE], capture_output=True, text=True, check=True
    )
    size, truncated, exit_code, grown_megabytes = answer.stdout.split()
    assert (int(size), truncated, exit_code) == (16 * MEGABYTE, "True", "0")
    assert int(grown_megabytes) < 64


async def test_a_command_is_never_told_of_a_broken_pipe() -> None:
    async with AsyncSandbox.create() as sandbox:
        script = "trap 'echo pipe > /tmp/pipe' PIPE; for i in {1..300}; do echo $i || exit 9; done"
        await sandbox.exec(f"({script}; echo done > /tmp/done) & sleep 0.01")
        result = await sandbox.exec("until [ -e /tmp/done ]; do :; done; test -e /tmp/pipe", timeout=30)
    assert result.exit_code == 1


async def test_calls_at_once_do_not_mix() -> None:
    async with AsyncSandbox.create() as sandbox:
        script = "cat; for i in 1 2 3; do echo $N; echo -$N >&2; done; exit $N"
        calls = [sandbox.exec(script, env={"N": str(number)}, stdin=f"{number}:") for number in range(100)]
        results = await asyncio.gather(*calls)
    for number, result in enumerate(results):
        assert result.stdout == f"{number}:" + f"{number}\n" * 3
        assert result.stderr == f"-{number}\n" * 3
        assert result.exit_code == number


async def test_calls_run_side_by_side_without_a_queue() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec("mkfifo /tmp/a /tmp/b")
        one = sandbox.exec("echo from-one > /tmp/a; cat /tmp/b", timeout=30)
        two = sandbox.exec("cat /tmp/a; echo from-two > /tmp/b", timeout=30)
        results = await asyncio.gather(one, two)
    assert [result.stdout for result in results] == ["from-two\n", "from-one\n"]


async def test_many_calls_at_once_are_all_served() -> None:
    async with AsyncSandbox.create() as sandbox:
        results = await asyncio.gather(*(sandbox.exec(["echo", str(number)]) for number in range(600)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(600)]
