"""What holds on the host's system holds on an image: network, limits, mounts, volumes, ports, terminals, code."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import Item, make_layer, make_oci
from support.python_image import needs_system_python, write_python_root
from support.servers import serving
from support.services import ECHO, echo, start
from support.serving import address
from support.upstream import running_upstream
from support.viewers import watch

from cove import (
    AsyncImage,
    AsyncSandbox,
    AsyncVolume,
    Image,
    Limits,
    Mount,
    NetworkPolicy,
    NetworkRule,
    VolumeMount,
)

pytestmark = [pytest.mark.anyio, needs_system_python]

FETCH = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as sock:
        sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        print(sock.recv(12).decode())
except OSError as error:
    print(type(error).__name__)
"""


FORKS = """
import os, signal
made = []
try:
    while len(made) < 100:
        made.append(os.fork())
        if not made[-1]:
            signal.pause()
except OSError:
    pass
for pid in made:
    os.kill(pid, 9)
    os.wait()
print(len(made))
"""


@pytest.fixture(scope="module")
def python_image(cove_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A root that has Python, and neither a shell nor anything else."""
    image = Image.load(write_python_root(tmp_path_factory.mktemp("image") / "root.tar"), name="python-only")
    yield image.name
    image.delete()


async def python(sandbox: AsyncSandbox, code: str, *arguments: str) -> str:
    result = await sandbox.exec(["python3", "-c", code, *arguments], timeout=60)
    return result.stdout + result.stderr


async def test_a_policy_lets_through_what_it_allows_and_nothing_else(
    python_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_upstream(tmp_path) as world:
        monkeypatch.setenv("COVE_RESOLVER", world.resolver)
        port = world.serve_http("files.example", body=b"content")
        policy = NetworkPolicy(allow=[NetworkRule(f"files.example:{port}", private=True)])
        async with AsyncSandbox.create(image=python_image, network=policy) as sandbox:
            assert (await python(sandbox, FETCH, "files.example", str(port))).endswith("200\n")
            result = await sandbox.exec(["python3", "-c", FETCH, "other.example", "80"])
            assert (result.stdout, [each.host for each in result.denied]) == ("gaierror\n", ["other.example"])
            assert "Error" in await python(sandbox, FETCH, "127.0.0.1", str(port))
        async with AsyncSandbox.create(image=python_image) as sandbox:
            assert await python(sandbox, FETCH, "files.example", str(port)) == "gaierror\n"


async def test_limits_hold(python_image: str) -> None:
    limits = Limits(memory=128 << 20, pids=40, disk=16 << 20)
    async with AsyncSandbox.create(image=python_image, limits=limits, user="root") as sandbox:
        enforced = set((await sandbox.info()).limits_enforced)
        if "memory" in enforced:
            result = await sandbox.exec(["python3", "-c", "x = bytearray(400 << 20)"], timeout=60)
            assert result.outcome == "out_of_memory"
        fill = "f = open('/usr/big', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()"
        assert not (await sandbox.exec(["python3", "-c", fill], timeout=60)).ok
        assert ((await sandbox.usage()).disk_bytes or 0) <= 17 << 20
        await sandbox.files.remove("/usr/big")
        if "pids" in enforced:
            assert int(await python(sandbox, FORKS)) < 40
        assert await python(sandbox, "print('alive')") == "alive\n"


async def test_mounts_and_volumes_are_there_and_stay_at_a_restart(python_image: str, tmp_path: Path) -> None:
    source = Path(f"/tmp/{tmp_path.name}-source")
    source.mkdir(mode=0o755)
    volume = await AsyncVolume.create("of-images")
    try:
        (source / "f").write_text("host")
        mounts: list[Mount | VolumeMount] = [
            Mount(source=str(source), target="/mnt/host", read_only=True),
            VolumeMount(volume="of-images", target="/srv/data"),
        ]
        async with AsyncSandbox.create(image=python_image, mounts=mounts) as sandbox:
            for _ in range(2):
                assert await sandbox.files.read("/mnt/host/f") == b"host"
                assert "Read-only" in await python(sandbox, "open('/mnt/host/f', 'w')")
                await sandbox.files.append("/srv/data/log", b"x")
                await sandbox.restart()
            assert await sandbox.files.read("/srv/data/log") == b"xx"
            snapshot = await sandbox.snapshot()
            made = await sandbox.commit("without-mounts")
        async with AsyncSandbox.create(image="without-mounts") as other:
            assert not await other.files.exists("/srv/data/log")
            assert not await other.files.exists("/mnt/host/f")
        await made.delete()
        await snapshot.delete()
    finally:
        await volume.delete()
        shutil.rmtree(source)


async def test_every_port_is_reached_and_exposed(python_image: str) -> None:
    async with AsyncSandbox.create(image=python_image) as sandbox:
        assert not any("sysctl" in warning for warning in (await sandbox.info()).warnings)
        await start(sandbox, ECHO, 80)
        async with sandbox.ports.connect(80) as connection:
            assert await echo(connection) == 50 << 20
        exposed = await sandbox.ports.expose(80)
        assert exposed.port == 80


async def test_terminals_and_sessions_bring_a_shell(python_image: str) -> None:
    async with AsyncSandbox.create(image=python_image) as sandbox:
        terminal = await sandbox.terminal()
        async with watch(terminal) as viewer:
            await viewer.connection.write(b"echo $((40 + 2)); exit 3\n")
            output, end = await viewer.until_exit()
        assert (b"42" in output, end.exit_code) == (True, 3)
        session = await sandbox.create_session()
        await session.exec("cd /usr; x=kept")
        assert (await session.exec("echo $PWD $x")).stdout == "/usr kept\n"
        copy = await session.fork()
        assert (await copy.exec("echo $PWD $x")).stdout == "/usr kept\n"


async def test_what_is_missing_is_named(python_image: str) -> None:
    async with AsyncSandbox.create(image=python_image) as sandbox:
        assert (await sandbox.exec(["python3", "-c", "print(1)"])).stdout == "1\n"
        result = await sandbox.exec("ls /")
        assert (result.exit_code, "ls: command not found" in result.stderr) == (127, True)
        for program in ("bash", "/bin/sh"):
            result = await sandbox.exec([program, "-c", "true"])
            assert (result.exit_code, program in result.stderr) == (127, True), result


async def test_code_runs_by_the_python_of_the_image(python_image: str) -> None:
    async with AsyncSandbox.create(image=python_image) as sandbox:
        context = await sandbox.create_code_context()
        run = await context.run("import sys, json; x = 41; print(sys.executable)")
        assert (run.stdout, run.error) == ("/usr/bin/python3\n", None)
        (copy,) = await context.fork()
        assert (await copy.run("x + 1")).text == "42"
        failed = await context.run("import numpy")  # Cove's packages are not the image's
        assert failed.error is not None
        assert failed.error.name == "ModuleNotFoundError"
        assert [info.interpreter for info in await sandbox.list_code_contexts()] == ["image", "image"]


@needs_busybox
async def test_a_server_with_a_warm_pool_makes_sandboxes_on_images(other_home: Path, tmp_path: Path) -> None:
    with serving(other_home, "--warm", "2", "--on-stop", "destroy") as server:
        where = address(server)
        image = await AsyncImage.load(write_busybox(tmp_path / "image.tar"), name="warm", **where)
        async with AsyncSandbox.create(image="warm", **where) as sandbox, AsyncSandbox.create(**where) as plain:
            assert (await sandbox.exec("ls /usr")).stdout == "bin\n"
            assert "lib" in (await plain.exec("ls /usr")).stdout
            (copy,) = await sandbox.fork()
            assert (await copy.exec("ls /usr")).stdout == "bin\n"
            await copy.destroy()
        await image.delete()


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="needs Debian's musl-tools")
async def test_a_root_with_another_libc_has_every_surface(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf("musl %d\\n", getuid()); }'
    )
    subprocess.run(["musl-gcc", "-o", tmp_path / "main", tmp_path / "main.c"], check=True)
    loader = Path("/lib/ld-musl-x86_64.so.1")
    if not loader.exists():
        pytest.skip("needs musl's loader")
    items = [
        Item("bin/main", (tmp_path / "main").read_bytes(), mode=0o755),
        Item(str(loader)[1:], loader.resolve().read_bytes(), mode=0o755),
    ]
    image = await AsyncImage.load(make_oci([make_layer(items)]).write(tmp_path / "image.tar"), name="musl")
    async with AsyncSandbox.create(image="musl") as sandbox:
        assert (await sandbox.exec(["main"])).stdout == (await sandbox.exec("main")).stdout == "musl 0\n"
        session = await sandbox.create_session()
        assert (await session.exec("main; cd /bin; main")).stdout == "musl 0\nmusl 0\n"
        assert (await sandbox.run_code("import subprocess; subprocess.check_output('main')")).text == "b'musl 0\\n'"
        await sandbox.files.write("/srv/f", "x")
        assert [each.path for each in await sandbox.files.search("x", "/srv")] == ["/srv/f"]
    await image.delete()
