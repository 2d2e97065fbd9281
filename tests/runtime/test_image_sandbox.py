"""Sandboxes on images: every surface in a root that has neither bash nor libc."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.image_files import Item, directory, symlink
from support.users import needs_one_user

from cove import AsyncImage, AsyncSandbox, Exit
from cove.errors import ImageInUse, ImageNotFound, ValidationFailed
from cove.layers.store import LayerStore

pytestmark = [pytest.mark.anyio, needs_busybox]

NO_CAPABILITIES = {f"Cap{name}:\t0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}


@pytest.fixture
async def busybox(tmp_path: Path) -> AsyncIterator[str]:
    settings = {"Env": ["GREETING=hello", "no variable", "PATH=/bin"], "WorkingDir": "/var"}
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar", settings=settings), name="busybox")
    yield image.name
    await image.delete()


async def test_commands_have_the_user_the_environment_and_the_directory_of_the_image(busybox: str) -> None:
    async with AsyncSandbox.create(image=busybox) as sandbox:
        result = await sandbox.exec("id -u; echo $GREETING $HOME $PATH; pwd; ls /")
        user, env, directory, *names = result.stdout.splitlines()
        assert (user, env, directory) == ("0", "hello /root /bin:/run/cove-sudo/bin", "/var")
        assert set(names) == {*("bin", "dev", "etc", "home", "proc", "root", "run", "tmp", "usr", "var", "workspace")}
        assert (await sandbox.exec(["id", "-u"], env={"PATH": "/bin"})).stdout == "0\n"


@needs_one_user
async def test_root_inside_has_no_capability_and_gives_files_to_others_without_effect(busybox: str) -> None:
    async with AsyncSandbox.create(image=busybox) as sandbox:
        status = (await sandbox.exec("cat /proc/self/status")).stdout.splitlines()
        assert set(status) >= {*NO_CAPABILITIES, "NoNewPrivs:\t1", "Seccomp:\t2"}
        result = await sandbox.exec("touch /etc/file && chown 33:34 /etc/file && ls -n /etc/file")
        assert result.stdout.split()[2:4] == ["0", "0"]


async def test_another_user_of_the_image_has_its_number_and_its_home(busybox: str) -> None:
    async with AsyncSandbox.create(image=busybox, user="web") as sandbox:
        assert (await sandbox.exec("id -u; id -g; echo $HOME; touch ~/file && echo made")).stdout == (
            "33\n34\n/var/web\nmade\n"
        )
        assert (await sandbox.exec("chown 0 ~/file")).exit_code != 0
    with pytest.raises(ValidationFailed, match="no user 'nobody-there'"):
        await AsyncSandbox.create(image=busybox, user="nobody-there")


async def test_the_system_is_the_sandboxs_own_and_two_do_not_see_each_other(busybox: str) -> None:
    async with AsyncSandbox.create(image=busybox) as one, AsyncSandbox.create(image=busybox) as two:
        command = "touch /usr/bin/tool /etc/setting /top && rm /bin/tty && ls -d /usr/bin/tool /etc/setting /top"
        assert (await one.exec(command)).exit_code == 0
        assert (await two.exec("ls /usr/bin /etc/setting /top; ls /bin/tty")).stdout == "/usr/bin:\n/bin/tty\n"


async def test_the_entry_point_and_its_arguments_are_started_and_end_in_the_list(tmp_path: Path) -> None:
    settings = {"Env": ["PATH=/bin"], "Entrypoint": ["sh", "-c", 'echo "$@"; exit 3', "sh"], "Cmd": ["one", "two"]}
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar", settings=settings), name="starts")
    async with AsyncSandbox.create(image="starts", startup=True) as sandbox:
        (process,) = await sandbox.list_processes()
        end = await process.output()
        assert (process.id, end.stdout, end.exit_code) == ("startup", "one two\n", 3)
    async with AsyncSandbox.create(image="starts", startup=["absent-program"]) as sandbox:
        assert (await (await sandbox.get_process("startup")).wait()).exit_code == 127
    await image.delete()


async def test_files_sessions_and_terminals_work(busybox: str) -> None:
    async with AsyncSandbox.create(image=busybox) as sandbox:
        await sandbox.files.write("/srv/deep/file", "text")
        assert await sandbox.files.read("/srv/deep/file") == b"text"
        assert [match.path for match in (await sandbox.files.list("/srv/deep"))] == ["/srv/deep/file"]
        session = await sandbox.create_session()
        await session.exec("cd /etc; X=kept; f() { echo function; }")
        assert (await session.exec("pwd; echo $X; f")).stdout == "/etc\nkept\nfunction\n"
        terminal = await sandbox.terminal(shell=["/bin/sh", "-c", "tty > /srv/tty; exit 3"])
        async with terminal.connect() as viewer:
            *_, last = [event async for event in viewer]
        assert isinstance(last, Exit)
        assert last.exit_code == 3
        assert (await sandbox.files.read("/srv/tty")).startswith(b"/dev/pts/")


async def test_python_contexts_bring_their_own_python_where_the_image_has_none(busybox: str) -> None:
    async with AsyncSandbox.create(image=busybox) as sandbox:
        result = await sandbox.run_code(
            "import os, numpy; print(os.getcwd(), numpy.arange(3)); os.path.exists('/usr/lib')"
        )
        assert (result.error, result.stdout, result.text) == (None, "/var [0 1 2]\n", "False")
        context = await sandbox.create_code_context()
        await context.run("import subprocess; x = subprocess.run(['id', '-u'], capture_output=True).stdout")
        (copy,) = await context.fork()
        assert (await copy.run("x")).text == "b'0\\n'"
        assert [info.interpreter for info in await sandbox.list_code_contexts()] == ["cove", "cove"]


PYTHON = Item("usr/bin/python3.99", b"#!/bin/sh\nexit 1\n", mode=0o755)


async def test_a_python_of_the_image_that_does_not_start_is_not_used(tmp_path: Path) -> None:
    path = write_busybox(tmp_path / "image.tar", PYTHON, symlink("usr/bin/python3", "python3.99"))
    image = await AsyncImage.load(path, name="broken-python")
    async with AsyncSandbox.create(image="broken-python") as sandbox:
        assert (await sandbox.run_code("1 + 1")).text == "2"
        context = await sandbox.create_code_context()
        assert [info.interpreter for info in await sandbox.list_code_contexts()] == ["cove"]
        await context.delete()
    await image.delete()


async def test_snapshots_forks_and_resets_have_the_whole_system(busybox: str, tmp_path: Path) -> None:
    async with AsyncSandbox.create(image=busybox) as sandbox:
        await sandbox.exec("mkdir /data && touch /data/first /usr/first; rm /bin/tty; echo mine > /etc/hosts")
        session = await sandbox.create_session()
        snapshot = await sandbox.snapshot()
        await sandbox.exec("touch /usr/second; rm -r /data")
        assert (await session.exec("ls /usr")).stdout == "bin\nfirst\nsecond\n"
        await sandbox.restore(snapshot)
        seen = "ls /data /usr; ls /bin/tty 2>/dev/null; cat /etc/hosts; id -u; echo $GREETING; pwd"
        expected = "/data:\nfirst\n\n/usr:\nbin\nfirst\nmine\n0\nhello\n/var\n"
        assert (await sandbox.exec(seen)).stdout == expected
        (copy,) = await sandbox.fork()
        async with AsyncSandbox.create(snapshot=snapshot) as third:
            assert (await copy.exec(seen)).stdout == (await third.exec(seen)).stdout == expected
        await copy.destroy()
        await sandbox.reset()
        assert (await sandbox.exec("ls /usr; ls /data; cat /etc/resolv.conf")).stdout == "bin\nnameserver 127.0.0.53\n"
        async with AsyncSandbox.create() as other:
            with pytest.raises(ValidationFailed, match="another system"):
                await other.restore(snapshot)
        with pytest.raises(ValidationFailed, match="image"):
            await snapshot.export(str(tmp_path / "export"))
        await snapshot.delete()


async def test_low_ports_are_for_everybody_inside_and_for_nobody_more_outside(busybox: str) -> None:
    path = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
    before = Path(path).read_text()
    async with AsyncSandbox.create(image=busybox, user="web") as sandbox:
        assert (await sandbox.exec(f"cat {path}")).stdout == "0\n"
    assert Path(path).read_text() == before


async def test_a_restart_keeps_the_system(busybox: str) -> None:
    async with AsyncSandbox.create(image=busybox) as sandbox:
        await sandbox.exec("touch /usr/kept")
        await sandbox.restart()
        assert (await sandbox.exec("ls /usr; echo $GREETING")).stdout == "bin\nkept\nhello\n"


async def test_layers_stay_while_a_sandbox_stands_on_them_and_go_then(tmp_path: Path, cove_home: Path) -> None:
    layers = cove_home / "layers"
    of_others = set(layers.glob("sha256-*"))
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar", Item("unique", b"1")), name="short-lived")
    own = set(layers.glob("sha256-*")) - of_others
    assert own
    sandbox = await AsyncSandbox.create(image="short-lived")
    with pytest.raises(ImageInUse, match="short-lived"):
        await image.delete()
    await image.delete(force=True)
    with pytest.raises(ImageNotFound):
        await AsyncSandbox.create(image="short-lived")
    await sandbox.restart()
    assert (await sandbox.exec("cat /unique")).stdout == "1"
    assert own <= set(layers.iterdir())
    await sandbox.destroy()
    other = await AsyncImage.load(write_busybox(tmp_path / "other.tar", Item("unique", b"2")), name="other")
    await other.delete()
    store = LayerStore(cove_home)
    async with asyncio.timeout(20):  # whoever just uses any layer keeps all of them
        while set(layers.glob("sha256-*")) - of_others:
            await asyncio.to_thread(store.collect)


HOSTILE = {
    "links in the place of mount points": [
        symlink("proc", "/etc"),
        symlink("dev", "/"),
        symlink("run", "usr"),
        symlink("tmp", "../../.."),
        symlink("workspace", "/proc/1/root"),
        symlink("home", "/bin"),
    ],
    "files in the place of mount points": [Item(name, b"x") for name in ("proc", "dev", "run", "tmp", "home")],
    "links in the place of files that are ours": [
        symlink("etc/resolv.conf", "/proc/1/root/etc/passwd"),
        symlink("etc/hosts", "/etc/passwd"),
        symlink("etc/hostname", "nowhere"),
    ],
    "an agent of its own": [
        directory("run"),
        directory("run/cove"),
        directory("run/cove/agent"),
        Item("run/cove/agent/init.pyc", b"evil"),
        directory("run/cove/host"),
    ],
    "a library for every program": [Item("etc/ld.so.preload", b"/lib/evil.so\n"), Item("etc/ld.so.cache", b"evil")],
    "a loader and a libc of its own": [
        *(directory(name) for name in ("lib", "lib64", "usr/lib", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")),
        *(
            Item(f"{place}/{name}", b"#!/bin/false evil", mode=0o755)
            for place in ("lib64", "lib", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
            for name in ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libc.so.6", "libm.so.6", "libtinfo.so.6")
        ),
    ],
    "variables for every program": [
        Item("etc/environment", b"LD_PRELOAD=/evil.so\n"),
        Item("etc/profile", b"exit 99\n"),
    ],
    "a Python of its own": [
        *(directory(name) for name in ("usr/lib", "usr/lib/python3", "usr/lib/python3.11")),
        *(Item(f"usr/lib/python3.11/{name}.py", b"raise SystemExit(99)") for name in ("os", "site", "encodings")),
    ],
    "no root's directory": [Item("root", b"file"), Item(".wh.var", b"")],
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_hostile_image_gets_the_jail_that_every_other_gets(what: str, tmp_path: Path) -> None:
    image = await AsyncImage.load(write_busybox(tmp_path / "image.tar", *HOSTILE[what]), name="hostile")
    try:
        async with AsyncSandbox.create(image="hostile") as sandbox:
            result = await sandbox.exec(
                "cd /; ls run/cove; readlink proc/self/exe; cat etc/resolv.conf; "
                "readlink proc dev run tmp home workspace"
            )
            assert result.stdout.splitlines() == [
                *("agent", "executor", "host", "packages", "shell"),
                *("/bin/busybox", "nameserver 127.0.0.53"),
            ]
            await sandbox.files.write("/tmp/file", "text")
            await sandbox.files.copy("/tmp/file", "/home/user/copy")
            assert await sandbox.files.read("/home/user/copy") == b"text"
            await sandbox.restart()
            assert (await sandbox.exec("cat /home/user/copy")).stdout == "text"
    finally:
        await image.delete()


async def test_an_image_needs_isolation_and_excludes_a_snapshot(busybox: str) -> None:
    for wrong in ({"isolation": "none", "image": busybox}, {"snapshot": "x", "image": busybox}, {"user": "root"}):
        with pytest.raises(ValidationFailed):
            await AsyncSandbox.create(**wrong)  # type: ignore[arg-type]  # words of a caller


async def test_images_are_listed_described_and_forgotten(busybox: str) -> None:
    assert [info.name for info in await AsyncImage.list()] == [busybox]
    info = await (await AsyncImage.get("busybox")).info()
    assert (info.workdir, info.layers, info.architecture) == ("/var", 1, "amd64")
    with pytest.raises(ImageNotFound, match="cove image ls"):
        await AsyncImage.get("nothing")
