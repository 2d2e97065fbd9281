"""A user of the image for one call, in this program and on a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.images import open_store
from support.servers import Server
from support.serving import MakeSandbox
from support.users import needs_one_user, needs_users

from cove.errors import PermissionDenied, UserUnavailable, ValidationFailed
from cove.model import Exit

pytestmark = [pytest.mark.anyio, needs_busybox]


@pytest.fixture
def image(cove_home: Path, shared_server: Server, tmp_path: Path) -> Iterator[str]:
    path = Path(write_busybox(tmp_path / "image.tar", settings={"Env": ["PATH=/bin"], "User": "web"}))
    stores = [open_store(home) for home in (cove_home, shared_server.home)]
    for store in stores:
        store.load(path, "contract-users")
    yield "contract-users"
    for store in stores:
        store.delete("contract-users")


WHO = "echo $(id -u) $(id -g) $HOME $USER"


@needs_users
async def test_commands_processes_sessions_and_terminals_run_as_the_user_who_is_named(
    make_sandbox: MakeSandbox, image: str
) -> None:
    async with make_sandbox(image=image) as sandbox:
        assert (await sandbox.exec(WHO)).stdout == "33 34 /var/web web\n"
        for user, expected in {"root": "0 0 /root root\n", "7:8": "7 8 / 7\n", "33": "33 34 /var/web web\n"}.items():
            assert (await sandbox.exec(WHO, user=user)).stdout == expected
            process = await sandbox.start_process(WHO, user=user)
            assert (await process.output()).stdout == expected
            session = await sandbox.create_session(user=user)
            assert (await session.exec(WHO)).stdout == expected
            assert (await (await session.start_process(WHO)).output()).stdout == expected
            terminal = await sandbox.terminal(shell=["/bin/sh", "-c", f"{WHO}; test -O $(tty)"], user=user)
            async with terminal.connect() as viewer:
                *_, last = [event async for event in viewer]
            assert isinstance(last, Exit)
            assert last.exit_code == 0


@needs_users
async def test_files_are_used_with_the_rights_of_the_user_who_is_named(make_sandbox: MakeSandbox, image: str) -> None:
    async with make_sandbox(image=image) as sandbox:
        with pytest.raises(PermissionDenied):
            await sandbox.files.write("/etc/file", "text")
        await sandbox.files.write("/etc/file", "text", mode=0o600, user="root")
        await sandbox.files.write("/etc/large", b"0" * 100_000, user="root")
        await sandbox.files.mkdir("/etc/deep/er", user="root")
        owners = (await sandbox.exec("ls -nd /etc/file /etc/large /etc/deep/er")).stdout.splitlines()
        assert {tuple(line.split()[2:4]) for line in owners} == {("0", "0")}
        with pytest.raises(PermissionDenied):
            await sandbox.files.read("/etc/file")
        assert await sandbox.files.read_text("/etc/file", user="root") == "text"
        assert [each.name for each in await sandbox.files.list("/etc", recursive=True, user="root")]
        await sandbox.files.remove_tree("/etc/deep", user="0")
        session = await sandbox.create_session(user="root")
        await session.files.append("/etc/file", " more")
        assert await session.files.read_text("/etc/file") == "text more"
        with pytest.raises(PermissionDenied):
            await session.files.write("/etc/file", "text", user="web")


@needs_users
async def test_a_user_that_was_made_inside_is_found_and_one_that_is_not_there_is_not(
    make_sandbox: MakeSandbox, image: str
) -> None:
    async with make_sandbox(image=image) as sandbox:
        with pytest.raises(UserUnavailable, match="no user 'new'"):
            await sandbox.exec("true", user="new")
        passwd = (await sandbox.files.read_text("/etc/passwd")) + "new:x:500:600:::\n"
        await sandbox.files.write("/etc/passwd", passwd, user="root")
        assert (await sandbox.exec(WHO, user="new")).stdout == "500 600 / new\n"
        await sandbox.files.write("/etc/passwd", b"\xff\0:::::" * 300_000, user="root")
        assert (await sandbox.exec("id -u", user="root")).stdout == "0\n"
        with pytest.raises(UserUnavailable):
            await sandbox.files.read("/etc/passwd", user="web")


@needs_one_user
async def test_where_no_others_can_be_mapped_there_is_one_user_and_the_error_says_what_to_do(
    make_sandbox: MakeSandbox, image: str
) -> None:
    async with make_sandbox(image=image) as sandbox:
        assert (await sandbox.exec("id -u", user="web")).stdout == "33\n"
        with pytest.raises(UserUnavailable, match="create a sandbox with user='root'"):
            await sandbox.exec("id -u", user="root")
        with pytest.raises(UserUnavailable):
            await sandbox.files.write("/etc/file", "text", user="root")
    async with make_sandbox(image=image, user="root") as sandbox:
        assert (await sandbox.exec("id -u", user="root")).stdout == "0\n"
        with pytest.raises(UserUnavailable):
            await sandbox.create_session(user="web")


async def test_on_the_hosts_system_there_is_one_user(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        assert (await sandbox.exec("id -u", user="user")).stdout == "1000\n"
        with pytest.raises(UserUnavailable, match="image"):
            await sandbox.exec("true", user="root")
        with pytest.raises(UserUnavailable):
            await sandbox.files.read("/etc/passwd", user="0")
        with pytest.raises(ValidationFailed):
            await sandbox.exec("true", user="")
