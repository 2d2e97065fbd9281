"""Run inside a booted machine: `checks.py USER RESULTS PART`. Writes one line of JSON for each check to RESULTS.

Each check uses Cove as a program would, and returns what it found. What raises has failed; a sandbox that Cove says
this machine cannot give was refused.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, UDPServer

import dns.message
import dns.rdatatype
import dns.rrset

from cove import Image, Limits, NetworkPolicy, NetworkRule, Sandbox, SandboxUnavailable

_LONGEST_SECONDS = 1800
_EATER = "x = bytearray(400 << 20)"
_SPINNER = "import time\nwhile time.process_time() < 1: pass"
_FORKER = "for i in $(seq 100); do sleep 1000 & done; wait"
_PROGRAMS = ("cat", "echo", "id", "ls", "sh", "sleep")


class Refused(Exception):
    """The machine does not have what is checked, and Cove says so."""


def doctor() -> str:
    """Let Cove say what the machine lacks; isolation has to be possible."""
    end = _cove("doctor", "--json")
    assert end.stdout, end.stderr[-500:]
    report = json.loads(end.stdout)
    found = {check["name"]: check for check in report["checks"]}
    if not report["isolation_possible"]:
        namespaces = found["namespaces"]
        raise Refused(f"{namespaces['found']}: {namespaces['advice']}")
    return "; ".join(f"{name}: {check['found']}" for name, check in found.items() if name in ("cgroups", "snapshots"))


def verify() -> str:
    """Try to break out, by 200 ways."""
    end = _cove("verify", "--json")
    if not end.stdout:
        raise Refused(end.stderr.strip()[-500:])
    report = json.loads(end.stdout)
    leaks = [f"{each['what']}: {each['why']}" for each in report["findings"] if each["verdict"] == "open"]
    assert not leaks, "; ".join(leaks)
    untried = [f"{each['what']}: {each['why']}" for each in report["findings"] if each["verdict"] == "not testable"]
    return f"{report['blocked']} blocked, {len(untried)} not testable: {'; '.join(untried)}"


def commands() -> str:
    """Run one command, and end the tree of another."""
    with Sandbox.create() as sandbox:
        assert sandbox.exec("id -un").stdout == "user\n"
        result = sandbox.exec("setsid sleep 1000 & echo started; sleep 1000", timeout=5)
        assert (result.outcome, result.stdout) == ("timed_out", "started\n"), result
        assert sandbox.exec("pgrep -c sleep").stdout == "0\n"
        return f"tree kill: {sandbox.info().tree_kill}"


def session() -> str:
    """Keep the state of a shell over a command that ran out of time."""
    with Sandbox.create() as sandbox:
        shell = sandbox.create_session()
        shell.exec("cd /tmp; x=kept")
        result = shell.exec("echo started; sleep 1000", timeout=5)
        assert (result.outcome, result.stdout) == ("timed_out", "started\n"), result
        result = shell.exec('echo "$x $PWD"')
        assert result.stdout == "kept /tmp\n", result
        return ""


def code() -> str:
    """Keep the state of a code context, and copy it live."""
    with Sandbox.create() as sandbox:
        context = sandbox.create_code_context()
        context.run("x = 20")
        result = context.run("import math; math.factorial(x)")
        assert result.text == "2432902008176640000", result
        (copy,) = context.fork()
        assert copy.run("x").text == "20"
        return ""


def memory() -> str:
    """End who uses up the memory, tell so, and nobody else."""
    with Sandbox.create(limits=Limits(memory=128 << 20)) as sandbox:
        _needs(sandbox, "memory")
        bystander = sandbox.start_process("read; echo still here", stdin=True)
        result = sandbox.exec(["python3", "-c", _EATER], timeout=300)
        assert result.outcome == "out_of_memory", result
        bystander.write_stdin(b"\n")
        assert bystander.output().stdout == "still here\n"
        usage = sandbox.usage()
        assert usage.memory_kills == 1, usage
        return f"measured by {usage.memory_measure}"


def pids() -> str:
    """Refuse more processes than there may be, and end those that are there."""
    with Sandbox.create(limits=Limits(pids=30)) as sandbox:
        _needs(sandbox, "pids")
        result = sandbox.exec(_FORKER, timeout=30)
        assert "fork" in result.stderr, result
        assert sandbox.exec("echo alive").stdout == "alive\n"
        return ""


def processors() -> str:
    """Give no more of the processors than the limit."""
    with Sandbox.create(limits=Limits(cpus=0.5)) as sandbox:
        _needs(sandbox, "cpus")
        before = time.monotonic()
        result = sandbox.exec(["python3", "-c", _SPINNER], timeout=300)
        took = time.monotonic() - before
        assert result.exit_code == 0, result
        assert took > 1.5, f"one second of a processor took {took:.1f} s"
        return f"one second of a processor took {took:.0f} s"


def disk() -> str:
    """Hold the limit on what is written."""
    with Sandbox.create(limits=Limits(disk=16 << 20)) as sandbox:
        result = sandbox.exec("head -c 64M /dev/zero > /tmp/big && sleep 60", timeout=300)
        assert not result.ok, result
        assert result.outcome != "timed_out", result
        return "; ".join(warning for warning in sandbox.info().warnings if "disk" in warning)


def network() -> str:
    """Reach the one name that is allowed, and no other.

    The first names are asked for until one is found: an emulated processor needs longer to start the process that
    answers than the C library waits for it.
    """
    with (
        _serving(HTTPServer(("127.0.0.1", 0), _Greeter)) as port,
        _serving(UDPServer(("127.0.0.1", 0), _Names)) as names,
    ):
        os.environ["COVE_RESOLVER"] = f"127.0.0.1:{names}"
        policy = NetworkPolicy(allow=[NetworkRule("server.test", ports=[port], private=True)])
        with Sandbox.create(network=policy) as sandbox:
            sandbox.exec("for try in $(seq 10); do getent hosts server.test && break; done", timeout=300)
            result = sandbox.exec(f"curl -sS http://server.test:{port}/", timeout=120)
            assert result.stdout == "hello\n", result
            denied = sandbox.exec("curl -sS http://other.test/", timeout=120)
            assert [each.host for each in denied.denied] == ["other.test"], denied
            direct = sandbox.exec(f"curl -sS http://127.0.0.1:{port}/", timeout=120)
            assert direct.exit_code != 0, direct
            sandbox.set_network("none")
            assert sandbox.exec(f"curl -sS http://server.test:{port}/", timeout=120).exit_code != 0
    return ""


def state() -> str:
    """Snapshot, change, fork and restore."""
    with Sandbox.create() as sandbox:
        sandbox.files.write("a", "first")
        snapshot = sandbox.snapshot()
        sandbox.files.write("a", "second")
        (copy,) = sandbox.fork()
        with copy:
            assert copy.files.read_text("a") == "second"
            copy.files.write("a", "third")
        assert sandbox.files.read_text("a") == "second"
        sandbox.restore(snapshot)
        assert sandbox.files.read_text("a") == "first"
        method = sandbox.info().snapshots
    snapshot.delete()
    return f"by {method}"


def image() -> str:
    """Run on a system of its own, and write into it."""
    archive = Path("/tmp", f"busybox-{_user}.tar")
    _write_image(archive)
    loaded = Image.load(str(archive), name="busybox")
    with Sandbox.create(image="busybox") as sandbox:
        assert sandbox.exec("ls /bin").stdout.split() == sorted(("busybox", *_PROGRAMS))
        assert sandbox.exec("echo new > /bin/new; cat /bin/new").stdout == "new\n"
        users = sandbox.info().users
    loaded.delete()
    return f"users: {users}"


def pause() -> str:
    """Freeze what runs, and let it go on."""
    with Sandbox.create() as sandbox:
        process = sandbox.start_process("while :; do echo tick; sleep 0.1; done")
        process.wait_for_log("tick", timeout=60)
        sandbox.pause(wake=False)
        before = _ticks()
        time.sleep(2)
        assert _ticks() == before, "a paused sandbox has used processors"
        sandbox.resume()
        assert sandbox.exec("echo alive").stdout == "alive\n"
        return f"tree kill: {sandbox.info().tree_kill}"


_SUITE = (doctor, commands, session, code, memory, pids, processors, disk, network, state, image, pause)
_PARTS: dict[str, tuple[Callable[[], str], ...]] = {"suite": _SUITE} | {
    check.__name__: (check,) for check in (*_SUITE, verify)
}


class _Greeter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:  # the name that http.server calls
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello\n")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: what is printed is for failures."""


class _Names(BaseRequestHandler):
    """Know every name, as this machine."""

    def handle(self) -> None:
        wire, sock = self.request
        reply = dns.message.make_response(dns.message.from_wire(wire))
        question = reply.question[0]
        if question.rdtype == dns.rdatatype.A:
            reply.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", "127.0.0.1"))
        sock.sendto(reply.to_wire(), self.client_address)


@contextmanager
def _serving(server: HTTPServer | UDPServer) -> Iterator[int]:
    """Answer meanwhile; gives the port."""
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def _cove(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["cove", *arguments], check=False, capture_output=True, text=True, timeout=_LONGEST_SECONDS)


def _needs(sandbox: Sandbox, name: str) -> None:
    info = sandbox.info()
    warnings = [warning for warning in info.warnings if f"limit {name}" in warning]
    if name not in info.limits_enforced or warnings:
        raise Refused("; ".join(warnings))


def _ticks() -> int:
    """Count the clock ticks that loops of bash have used: proc(5)."""
    used = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if "echo tick" in (process / "cmdline").read_text(errors="replace"):
                fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
                used += int(fields[11]) + int(fields[12])
    return used


def _write_image(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.add("/bin/busybox", "bin/busybox")
        for program in _PROGRAMS:
            link = tarfile.TarInfo(f"bin/{program}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        users = b"root:x:0:0:root:/root:/bin/sh\n"
        member = tarfile.TarInfo("etc/passwd")
        member.size = len(users)
        archive.addfile(member, io.BytesIO(users))


def _try(check: Callable[[], str]) -> tuple[str, str]:
    signal.alarm(_LONGEST_SECONDS)
    try:
        return "ok", check()
    except (Refused, SandboxUnavailable) as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001  # whatever it is, the next check has its turn
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def _give_up(number: int, frame: object) -> None:
    raise TimeoutError(f"not done within {_LONGEST_SECONDS} s")


def main(results: str, part: str) -> None:
    """Run the checks one after another."""
    signal.signal(signal.SIGALRM, _give_up)
    for check in _PARTS[part]:
        name = check.__name__
        before = time.monotonic()
        print(f"{_user}: {name} ...", flush=True)
        end, detail = _try(check)
        seconds = round(time.monotonic() - before, 1)
        print(f"{_user}: {name}: {end} in {seconds} s: {detail}", flush=True)
        with open(results, "w") as file:
            file.write(json.dumps({"user": _user, "check": name, "end": end, "detail": detail, "seconds": seconds}))
            file.write("\n")


if __name__ == "__main__":
    _user = sys.argv[1]
    main(*sys.argv[2:])
