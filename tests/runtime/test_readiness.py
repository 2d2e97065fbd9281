"""Waiting until a process is ready: a line in its log, an answer on a port."""

import asyncio
import os
import re
import subprocess

import pytest
from support.inside import agents_outside
from support.loop_time import bounded_callbacks

from cove import AsyncSandbox
from cove.errors import ProcessExitedBeforeReady, ProcessReadyTimeout, ValidationFailed
from cove.model import LogMatch, ProcessStatus
from cove.runtime import log

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

# Serves HTTP on the port and address given; each answer has the next of the statuses given, then the last again.
SERVER = """
import socket, sys
host, port, *statuses = sys.argv[1:]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
server = socket.create_server((host, int(port)), family=family)
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    line = connection.recv(65536).split(b"\\r\\n")[0]
    print(line.decode(), flush=True)
    status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
    connection.sendall(b"HTTP/1.1 " + status.encode() + b" x\\r\\nContent-Length: 0\\r\\n\\r\\n")
    connection.close()
"""


def server(port: int, *statuses: str, host: str = "127.0.0.1") -> list[str]:
    return ["python3", "-ISc", SERVER, host, str(port), *(statuses or ("200",))]


async def test_a_line_already_printed_is_found() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo one; echo ready on 3000; echo two")
        await process.wait()
        assert await process.wait_for_log("ready") == LogMatch("ready on 3000")
        assert await process.wait_for_log("two", timeout=0) == LogMatch("two")


async def test_a_line_to_come_is_found_on_either_stream() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("read; echo first >&2; read; echo second; sleep 1000", stdin=True)
        for line in ("first", "second"):
            wait = asyncio.ensure_future(process.wait_for_log(line))
            await asyncio.sleep(0)
            await process.write_stdin("\n")
            assert (await wait).line == line


async def test_a_line_that_comes_in_pieces_is_one_line() -> None:
    async with AsyncSandbox.create() as sandbox:
        script = "for c in s e r v e r ' ' u p '\n'; do read; printf \"$c\"; printf x >&2; done; sleep 1000"
        process = await sandbox.start_process(script, stdin=True)
        wait = asyncio.ensure_future(process.wait_for_log(re.compile(r"^(\w+) (?P<state>up|down)$")))
        for _ in range(10):
            await process.write_stdin("\n")
            assert (await sandbox.exec("true")).ok
        assert await wait == LogMatch("server up", ("server", "up"))


async def test_the_groups_of_an_expression_are_given_and_may_be_empty() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo port=4000; sleep 1000")
        found = await process.wait_for_log(re.compile(r"(?:host=(\S+) )?port=(\d+)"))
        assert found == LogMatch("port=4000", (None, "4000"))


async def test_a_text_is_found_in_a_line_that_has_not_ended_an_expression_waits_for_its_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("printf 'Password: '; read; echo; sleep 1000", stdin=True)
        assert (await process.wait_for_log("Password:")).line == "Password: "
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_log(re.compile("Password"), timeout=0.05)
        wait = asyncio.ensure_future(process.wait_for_log(re.compile("Password")))
        await asyncio.sleep(0)
        await process.write_stdin("\n")
        assert (await wait).line == "Password: "


async def test_the_last_line_of_an_ended_process_needs_no_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("printf 'no end'")
        assert (await process.wait_for_log(re.compile("^no end$"))).line == "no end"


async def test_a_line_that_has_gone_to_disk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WINDOW_BYTES", 1000)
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo needle; head -c 500000 /dev/zero; sleep 1000")
        await process.wait_for_log("\0" * 1000)
        assert (await process.wait_for_log("needle")).line == "needle"


@pytest.mark.parametrize("pattern", [r"(\d+)x", r"(.*)(.*)(.*)ready", r"(\d+)+$", r"(?:(?=(\d+))\1)+x"])
async def test_a_slow_expression_keeps_nobody_waiting_and_its_own_time(pattern: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("yes 1 | head -c 800000 | tr -d '\n'; echo y; echo printed; sleep 1000")
        await process.wait_for_log("printed")
        for attempt in bounded_callbacks():
            with attempt:
                with pytest.raises(ProcessReadyTimeout):
                    await process.wait_for_log(re.compile(pattern), timeout=0.5)
                assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_a_line_that_takes_an_expression_too_long_does_not_hide_the_next() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("yes 1 | head -c 800 | tr -d '\n'; echo; echo 12x; sleep 1000")
        found = await process.wait_for_log(re.compile(r"^(\d+)+x$"))
        assert found == LogMatch("12x", ("12",))


async def test_an_expression_that_is_slow_on_every_line_is_refused_in_the_end() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("while head -c 80 /dev/zero | tr '\\0' 1; do echo; sleep 0.01; done")
        with pytest.raises(ValidationFailed, match="takes too long"):
            await process.wait_for_log(re.compile(r"^(\d+)+x$"))


@pytest.mark.parametrize("output", [r"'\n'", "'a\\n'", r"'\377'"])
async def test_a_flood_of_lines_is_searched_in_small_steps(output: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(f"head -c 3000000 /dev/zero | tr '\\0' {output}; echo; echo last")
        await process.wait()
        for attempt in bounded_callbacks():
            with attempt:
                assert (await process.wait_for_log("last")).line == "last"
                assert (await process.wait_for_log(re.compile("^last$"))).line == "last"


async def test_flags_and_what_only_this_engine_has_are_kept() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo 'é READY Été'; sleep 1000")
        for expression in (
            re.compile(r"ready \bété\b", re.IGNORECASE),
            re.compile(r"(?<=é\s) READY  # not that far", re.VERBOSE),
            re.compile(r"(?P<word>\w) .*(?i:\bé)", re.DOTALL),
        ):
            assert (await process.wait_for_log(expression, timeout=20)).line == "é READY Été"
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_log(re.compile(r"\bÉt", re.ASCII), timeout=0)


async def test_without_any_time_what_is_printed_already_is_found() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("seq 100000; echo printed; sleep 1000")
        await process.wait_for_log("printed")
        assert (await process.wait_for_log("99999", timeout=0)).line == "99999"
        assert (await process.wait_for_log(re.compile("^99999$"), timeout=0)).line == "99999"
        for pattern in ("other", re.compile("other")):
            with pytest.raises(ProcessReadyTimeout):
                await process.wait_for_log(pattern, timeout=0)
        await process.kill()
        await process.wait()
        with pytest.raises(ProcessExitedBeforeReady):
            await process.wait_for_log("other", timeout=0)


async def test_a_cancelled_search_leaves_no_process() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("yes 1 | head -c 800000 | tr -d '\n'; sleep 1000")
        for seconds in (0, 0.001, 0.01, 0.1):
            wait = asyncio.ensure_future(process.wait_for_log(re.compile(r"(\d+)+$")))
            await asyncio.wait([wait], timeout=seconds)
            wait.cancel()
            await asyncio.wait([wait])


@pytest.mark.parametrize("pattern", [re.compile(b"bytes"), re.compile("x" * 70000), "two\nlines"])
async def test_a_pattern_that_makes_no_sense_is_refused(pattern: str | re.Pattern[str]) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("sleep 1000")
        with pytest.raises(ValidationFailed):
            await process.wait_for_log(pattern)


async def test_when_the_time_is_up_only_the_wait_ends() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("echo something; sleep 1000")
        for wait in (process.wait_for_log("else", timeout=0.05), process.wait_for_port(3000, timeout=0.05)):
            with pytest.raises(ProcessReadyTimeout):
                await wait
        assert process.status is ProcessStatus.RUNNING


@pytest.mark.parametrize("keep", [True, False])
async def test_a_process_that_ends_first_is_an_error_with_its_code_and_last_output(keep: bool) -> None:
    async with AsyncSandbox.create() as sandbox:
        command = "read; head -c 300000 /dev/zero; echo; echo cannot bind >&2; exit 98"
        for ask in ("log", "port"):
            process = await sandbox.start_process(command, stdin=True, keep=keep)
            wait = asyncio.ensure_future(process.wait_for_log("ready") if ask == "log" else process.wait_for_port(3000))
            await asyncio.sleep(0)
            await process.close_stdin()
            with pytest.raises(ProcessExitedBeforeReady) as raised:
                await wait
            assert raised.value.exit_code == 98
            assert raised.value.output.endswith("cannot bind\n")
            assert "98" in str(raised.value)


async def test_a_process_that_has_ended_is_never_ready_even_if_another_has_its_port() -> None:
    async with AsyncSandbox.create() as sandbox:
        first = await sandbox.start_process(server(3000))
        await first.wait_for_port(3000)
        second = await sandbox.start_process(server(3000))
        await second.wait()
        with pytest.raises(ProcessExitedBeforeReady) as raised:
            await second.wait_for_port(3000)
        assert "Address already in use" in raised.value.output


async def test_a_server_that_starts_late_is_waited_for() -> None:
    async with AsyncSandbox.create() as sandbox:
        script = 'until [ -e go ]; do sleep 0.01; done; exec python3 -ISc "$1" 127.0.0.1 3000 200'
        process = await sandbox.start_process(["bash", "-c", script, "bash", SERVER])
        wait = asyncio.ensure_future(process.wait_for_port(3000))
        assert (await sandbox.exec("true")).ok
        assert not wait.done()
        await sandbox.exec("touch go")
        async with asyncio.timeout(30):
            await wait
        assert (await process.wait_for_log("GET")).line == "GET / HTTP/1.1"


async def test_a_server_that_fails_at_first_is_asked_again() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(server(3000, "500", "503", "404", "200"))
        async with asyncio.timeout(30):
            await process.wait_for_port(3000, path="/health?deep=1")
        text = b"".join([getattr(event, "data", b"") async for event in process.logs(follow=False)])
        assert text.count(b"GET /health?deep=1 HTTP/1.1\n") == 4


async def test_which_status_means_ready_can_be_chosen() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(server(3000, "404"))
        await process.wait_for_port(3000, status=(404, 404), timeout=30)
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_port(3000, timeout=0.2)


async def test_tcp_asks_for_nothing_but_a_listener() -> None:
    async with AsyncSandbox.create() as sandbox:
        command = "import socket; s = socket.create_server(('127.0.0.1', 3000)); print('up', flush=True); input()"
        process = await sandbox.start_process(["python3", "-ISc", command], stdin=True)
        await process.wait_for_port(3000, mode="tcp", timeout=30)
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_port(3000, timeout=0.2)
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_port(3001, mode="tcp", timeout=0.05)


@pytest.mark.parametrize("answer", ["", "no http", "HTTP/1.1", "x" * 100_000, "HTTP/1.1 9" + "9" * 5000 + "\\r\\n"])
async def test_an_answer_that_is_not_http_is_not_ready(answer: str) -> None:
    command = f"""
import socket
s = socket.create_server(("127.0.0.1", 3000))
print("up", flush=True)
while True:
    c, _ = s.accept()
    try:
        c.sendall("{answer}".encode())
    except OSError:
        pass
    c.close()
"""
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(["python3", "-ISc", command])
        await process.wait_for_log("up")
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_port(3000, timeout=0.3)
        assert (await sandbox.exec("echo fine")).ok


async def test_a_server_that_listens_on_ipv6_only_is_found() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(server(3000, host="::1"))
        await process.wait_for_port(3000, timeout=30)
        await process.wait_for_port(3000, mode="tcp", timeout=30)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change a sandbox's network from outside")
async def test_without_ipv6_a_port_is_waited_for_like_any_other() -> None:
    async with AsyncSandbox.create() as sandbox:
        assert (await sandbox.exec("true")).ok
        change = ["nsenter", "-t", str(agents_outside()[0]), "-n", "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]
        answer = await asyncio.to_thread(subprocess.run, change, capture_output=True, text=True)
        if answer.returncode:
            pytest.skip(f"IPv6 cannot be switched off here: {answer.stderr}")
        script = 'until [ -e go ]; do sleep 0.01; done; exec python3 -ISc "$1" 127.0.0.1 3000 200'
        process = await sandbox.start_process(["bash", "-c", script, "bash", SERVER])
        with pytest.raises(ProcessReadyTimeout):
            await process.wait_for_port(3000, timeout=0.1)
        await sandbox.exec("touch go")
        await process.wait_for_port(3000, timeout=30)


async def test_every_sandbox_has_a_port_3000_of_its_own() -> None:
    async with AsyncSandbox.create() as one, AsyncSandbox.create() as other:
        first = await one.start_process(server(3000, "200"))
        second = await other.start_process(server(3000, "201"))
        await asyncio.gather(
            first.wait_for_port(3000, status=(200, 200), timeout=30),
            second.wait_for_port(3000, status=(201, 201), timeout=30),
        )
        await first.kill("KILL")
        with pytest.raises(ProcessExitedBeforeReady):
            await first.wait_for_port(3000)
        await second.wait_for_port(3000, status=(201, 201), timeout=30)


async def test_many_wait_for_one_port() -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process(server(3000))
        await asyncio.gather(*(process.wait_for_port(3000, timeout=60) for _ in range(30)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"port": 0},
        {"port": 65536},
        {"port": True},
        {"port": "80"},
        {"mode": "udp"},
        {"path": "no-slash"},
        {"path": "/a b"},
        {"path": "/a\r\nX: y"},
        {"path": None},
        {"status": (399, 200)},
        {"status": (True, 300)},
        {"status": 200},
        {"status": (200,)},
        {"timeout": -1},
    ],
)
async def test_arguments_that_make_no_sense_are_refused_at_once(arguments: dict[str, object]) -> None:
    async with AsyncSandbox.create() as sandbox:
        process = await sandbox.start_process("sleep 1000")
        with pytest.raises(ValidationFailed):
            await process.wait_for_port(**{"port": 3000, **arguments})  # type: ignore[arg-type]
