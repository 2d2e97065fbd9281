"""What `cove serve` says when it stops."""

import http.client
import os
import signal
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.commands import COVE
from support.leaks import KEYS
from support.servers import eventually, serving

from cove import Limits
from cove.cli.serve import describe_defaults, find_exposed_key
from cove.linux.cgroup import Hierarchies
from cove.server.configuration import Configuration

pytestmark = pytest.mark.pure


def last_words(home: Path, *options: str, sandboxes: int = 0) -> str:
    KEYS.watch(home)
    environment = {**os.environ, "COVE_HOME": str(home)}
    with subprocess.Popen(
        [COVE, "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        assert server.stdout is not None
        environment["COVE_URL"] = server.stdout.readline().split()[2].rstrip(",")
        assert server.stdout.readline().startswith("Each sandbox gets")
        for _ in range(sandboxes):
            subprocess.run([COVE, "create"], env=environment, stdout=subprocess.DEVNULL, check=True, timeout=60)
        server.send_signal(signal.SIGTERM)
        output, said = server.communicate(timeout=60)
    assert (output, server.returncode) == ("", 0)
    return said


@pytest.mark.parametrize(("options", "found"), [([], False), (["--unlimited"], True)])
def test_it_says_what_sandboxes_get_and_what_cannot_be_held(options: list[str], found: bool, other_home: Path) -> None:
    with serving(other_home, *options) as server:
        said = server.said
        for name in ("memory", "cpus", "pids", "disk", "lifetime"):
            assert (f"{name} unlimited" in said) == found, said
        assert "idle timeout unlimited" in said


def test_it_answers_to_the_address_that_it_listens_on_and_to_no_other_name(other_home: Path) -> None:
    with serving(other_home, "--host", "127.0.0.2") as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
        for host, status in ((urlsplit(server.url).netloc, 200), ("127.0.0.3", 403), ("evil.example", 403)):
            connection.request("GET", "/v1/sandboxes", headers={"Host": host, "Authorization": f"Bearer {server.key}"})
            answer = connection.getresponse()
            assert (answer.status, b"`names`" in answer.read()) == (status, status != 200)
        connection.close()


def test_a_machine_that_cannot_hold_them_is_told_of() -> None:
    limits = Limits(memory=1 << 30, cpus=2.0, pids=100, disk=1 << 30)
    said = describe_defaults(Configuration(default_limits=limits), Hierarchies(None))
    assert all(f"limit {name} " in said.partition("On this machine")[2] for name in ("memory", "cpus", "pids"))
    assert "On this machine" not in describe_defaults(Configuration(), Hierarchies(None))


def test_it_says_what_became_of_the_sandboxes(other_home: Path) -> None:
    found = "The next `cove serve` finds them.\n"
    assert last_words(other_home) == "cove: stopped. It had no sandboxes.\n"
    assert last_words(other_home, sandboxes=2) == f"cove: stopped. Sandboxes left running: 2; stopped: 0. {found}"
    assert last_words(other_home, "--on-stop", "destroy") == "cove: stopped. Its sandboxes were destroyed.\n"


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (["--port", "65536"], "65536"),
        (["--port", "-1"], "-1"),
        (["--port", "65535"], "65536"),  # the next one is that of previews
        (["--port", "0", "--preview-port", "99999"], "99999"),
    ],
)
def test_a_port_that_does_not_exist_is_refused(options: list[str], number: str, other_home: Path) -> None:
    end = subprocess.run(
        [COVE, "serve", "--home", str(other_home), *options], capture_output=True, text=True, timeout=60
    )
    assert (end.returncode, end.stdout) == (125, "")
    assert end.stderr == f"cove: there is no port {number}: use 1 to 65535, or 0 for any that is free\n"


def test_a_port_that_is_taken_is_told_with_what_to_do(other_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        end = subprocess.run(
            [COVE, "serve", "--home", str(other_home), "--port", port], capture_output=True, text=True, timeout=60
        )
    assert (end.returncode, end.stdout) == (125, "")
    advice = "Address already in use: stop what listens there, or choose another port"
    assert end.stderr == f"cove: cannot listen on 127.0.0.1:{port}: {advice}\n"


def test_clients_find_the_key_that_the_server_of_this_user_was_given(other_home: Path, tmp_path: Path) -> None:
    configuration = tmp_path / "cove.toml"
    configuration.write_text('api_key = "a-key-of-my-own"\n')
    environment = {name: value for name, value in os.environ.items() if name != "COVE_API_KEY"}
    environment["COVE_HOME"] = str(other_home)
    for options in ((), ("--config", str(configuration)), ("--api-key", "another-key-of-mine")):
        with serving(other_home, *options) as server:
            listing = [COVE, "ls", "--url", server.url]
            end = subprocess.run(listing, env=environment, capture_output=True, timeout=60, check=False)
            assert (end.returncode, end.stderr) == (0, b"")
            kept = other_home / "server" / "key"
            assert not options or kept.stat().st_mode & 0o777 == 0o600
        assert not kept.exists()


@pytest.mark.anyio
async def test_a_server_outlives_who_read_its_first_line(other_home: Path) -> None:
    with serving(other_home) as server:
        assert server.process.stdout is not None
        server.process.stdout.close()
        before = server.children()
        worker = next(pid for pid, name in before.items() if name == "worker")
        os.kill(worker, signal.SIGKILL)  # of which it tells
        await eventually(lambda: len(server.children()) == len(before) and worker not in server.children())
        assert server.process.poll() is None


def test_commands_find_the_server_of_their_state_directory(other_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVE_URL", raising=False)

    def ask(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "COVE_HOME": str(other_home)}
        return subprocess.run([COVE, *arguments], env=environment, capture_output=True, text=True, timeout=60)

    with serving(other_home, "--on-stop", "destroy", "--host", "0.0.0.0") as server:
        url = (other_home / "server" / "url").read_text().strip()
        assert url == server.url.replace("0.0.0.0", "127.0.0.1")
        assert ask("create", "--id", "here").stdout == "here\n"
        assert ask("ls", "--quiet").stdout == "here\n"
        assert ask("exec", "--in", "here", "echo inside").stdout == "inside\n"
        assert ask("rm", "here").returncode == 0
        server.kill_all()
        assert "no server answers at http://127.0.0.1:8787" in ask("ls").stderr


@pytest.mark.parametrize(
    ("text", "mode", "is_told"),
    [("api_key = 'k'", 0o644, True), ("api_key = 'k'", 0o600, False), ("port = 0", 0o644, False)],
)
def test_a_key_that_others_can_read_is_told(text: str, mode: int, is_told: bool, tmp_path: Path) -> None:
    file = tmp_path / "cove.toml"
    file.write_text(text)
    file.chmod(mode)
    found = find_exposed_key(file)
    assert found == (f"others can read the key in {file}: `chmod 600 {file}`" if is_told else None)
