"""Attempts on a neighbour: two sandboxes of one user, and whether one sees, signals, reaches or reads the other."""

import re

from cove import AsyncSandbox
from cove.api import Process
from cove.verify.inside.harness import Blocked
from cove.verify.outside import Facts, outside_probe

AREA = "neighbours"

_LISTEN = """
import socket, sys
kind, name = sys.argv[1:]
if kind == 'tcp':
    server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1], flush=True)
else:
    server = socket.socket(socket.AF_UNIX); server.bind(chr(0) + name); server.listen(); print(1, flush=True)
sys.stdin.read()
"""
_CONNECT = """
import socket, sys
kind, name = sys.argv[1:]
if kind == 'tcp':
    socket.create_connection(('127.0.0.1', int(name)), 3)
else:
    socket.socket(socket.AF_UNIX).connect(chr(0) + name)
"""
_SHARE = """
import ctypes, sys
library = ctypes.CDLL(None, use_errno=True)
made = library.shmget(0x434f5645, 4096, 0o1600 if sys.argv[1] == 'make' else 0)
if sys.argv[1] == 'remove': library.shmctl(made, 0, None)
sys.exit(made < 0)
"""


async def _python(sandbox: AsyncSandbox, code: str, *arguments: str) -> bool:
    result = await sandbox.exec(["/usr/bin/python3", "-I", "-c", code, *arguments], timeout=20)
    return result.ok


async def _first_line(server: Process) -> str:
    return (await server.wait_for_log(re.compile(r"\d+"), timeout=20)).line.strip()


@outside_probe(AREA, "files of the neighbour can be read by their path")
async def read_the_neighbours_files(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    path = (await neighbour.exec(f"echo {facts['secret']} > mine; readlink -f mine")).stdout.strip()
    if facts["secret"] not in (await sandbox.exec(["cat", path])).stdout:
        raise Blocked("there is no such file")
    return "its file was read"


@outside_probe(AREA, "files of the neighbour in /dev/shm can be read")
async def read_the_neighbours_shared_memory(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    path = f"/dev/shm/{facts['secret']}"
    await neighbour.exec(f"echo {facts['secret']} > {path}")
    seen = (await sandbox.exec(["cat", path])).stdout
    await neighbour.exec(["rm", path])
    if facts["secret"] not in seen:
        raise Blocked("there is no such file")
    return "its file was read"


@outside_probe(AREA, "shared memory of System V is common")
async def share_memory_by_key(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    await _python(neighbour, _SHARE, "make")
    is_seen = await _python(sandbox, _SHARE, "look")
    await _python(neighbour, _SHARE, "remove")
    if not is_seen:
        raise Blocked("there is no such segment")
    return "its segment was found"


@outside_probe(AREA, "processes of the neighbour are seen")
async def see_the_neighbours_processes(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    process = await neighbour.start_process(["sleep", "98765"])
    shown = (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
    await process.kill("KILL")
    if "98765" not in shown:
        raise Blocked("they are not listed")
    return "they are listed"


@outside_probe(AREA, "processes of the neighbour can be signalled")
async def signal_the_neighbours_processes(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    process = await neighbour.start_process(["sleep", "98764"])
    find = "for p in /proc/[0-9]*; do grep -qz 98764 $p/cmdline 2>/dev/null && kill -TERM ${p#/proc/}; done; true"
    await sandbox.exec(find)
    is_running = process.status == "running" and (await neighbour.exec("grep -qz 98764 /proc/[0-9]*/cmdline")).ok
    await process.kill("KILL")
    if is_running:
        raise Blocked("it runs on")
    return "it was ended"


@outside_probe(AREA, "a port of the neighbour can be reached")
async def reach_the_neighbours_port(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    server = await neighbour.start_process(["/usr/bin/python3", "-I", "-c", _LISTEN, "tcp", ""], stdin=True)
    port = await _first_line(server)
    reached = await _python(sandbox, _CONNECT, "tcp", port)
    await server.kill("KILL")
    if not reached:
        raise Blocked("nobody answers")
    return "it answers"


@outside_probe(AREA, "an abstract socket of the neighbour can be reached")
async def reach_the_neighbours_abstract_socket(sandbox: AsyncSandbox, neighbour: AsyncSandbox, facts: Facts) -> str:
    name = f"{facts['secret']}-{neighbour.id}"
    server = await neighbour.start_process(["/usr/bin/python3", "-I", "-c", _LISTEN, "unix", name], stdin=True)
    await _first_line(server)
    reached = await _python(sandbox, _CONNECT, "unix", name)
    await server.kill("KILL")
    if not reached:
        raise Blocked("nobody answers")
    return "it answers"
