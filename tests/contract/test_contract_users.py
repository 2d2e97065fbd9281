"""A user of the image for one call, in this program and on a server."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from support.busybox import needs_busybox, write_busybox
from support.executors import needs_python
from support.images import open_store
from support.servers import Server
from support.serving import MakeSandbox
from support.users import needs_one_user, needs_users

from cove import AsyncSandbox
from cove.errors import PermissionDenied, UserUnavailable, ValidationFailed
from cove.model import Exit, FileKind, SandboxUsers

pytestmark = [pytest.mark.anyio, needs_busybox]


@pytest.fixture
def image(cove_home: Path, contract_servers: list[Server], tmp_path: Path) -> Iterator[str]:
    path = Path(write_busybox(tmp_path / "image.tar", settings={"Env": ["PATH=/bin"], "User": "web"}))
    stores = [open_store(home) for home in (cove_home, *(server.home for server in contract_servers))]
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
        assert (await sandbox.info()).users is SandboxUsers.REAL
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


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def owners(sandbox: AsyncSandbox, *paths: str) -> set[tuple[str, ...]]:
    listed = await sandbox.exec(["/bin/ls", "-nd", *paths], user="root")
    assert listed.exit_code == 0, listed
    return {tuple(line.split()[2:4]) for line in listed.stdout.splitlines()}


@needs_users
async def test_every_call_on_files_is_made_as_the_user_who_is_named_and_what_it_makes_is_theirs(
    make_sandbox: MakeSandbox, image: str, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (local / "file").write_text("up")
    async with make_sandbox(image=image) as sandbox:
        files = sandbox.files
        await files.mkdir("/closed", user="root")
        await files.chmod("/closed", 0o700, user="root")
        await files.write("/closed/small", "one two", user="root")
        await files.write_stream("/closed/large", pieces(b"0" * 100_000), user="root")
        await files.append("/closed/appended/deep", "text", user="root")
        await files.copy("/closed/small", "/closed/copy", user="root")
        await files.copy("/closed/appended", "/closed/tree", user="root")
        await files.rename("/closed/copy", "/closed/renamed", user="root")
        await files.move("/closed/renamed", "/tmp/moved", user="root")
        await files.upload(local / "file", "/closed/uploaded", user="root")
        await files.upload(local, "/closed/uploaded-tree", user="root")
        archive = files.read_archive("/closed/uploaded-tree", user="root")
        await files.write_archive("/closed/unpacked", archive, user="root")
        assert await files.replace("/closed/small", "one", "1", user="root") == 1
        made = [f"/closed/{name}" for name in ("small", "large", "appended/deep", "tree/deep", "uploaded")]
        made += ["/tmp/moved", "/closed/uploaded-tree/file", "/closed/unpacked/file"]
        assert await owners(sandbox, *made) == {("0", "0")}
        assert await files.read_text("/closed/small", user="root") == "1 two"
        assert await files.exists("/closed/large", user="root")
        assert [each.line for each in await files.search("two", "/closed", user="root")] == ["1 two"]
        assert await files.glob("up*", root="/closed", user="root") == ["uploaded", "uploaded-tree"]
        await files.download("/closed/uploaded-tree", tmp_path / "down", user="root")
        assert (tmp_path / "down/file").read_text() == "up"
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: files.read("/closed/small"),
            lambda: files.stat("/closed/small"),
            lambda: files.exists("/closed/small"),
            lambda: files.list("/closed"),
            lambda: files.list("/closed", recursive=True),
            lambda: files.chmod("/closed", 0o777),
            lambda: files.copy("/closed/small", "/tmp/copy"),
            lambda: files.rename("/tmp/moved", "/tmp/mine"),
            lambda: files.remove("/closed/small"),
            lambda: files.remove_tree("/closed"),
            lambda: files.append("/tmp/moved", "text"),
            lambda: files.replace("/tmp/moved", "one", "1"),
            lambda: files.download("/closed", tmp_path / "never"),
            lambda: files.upload(local, "/closed/never"),
        ]
        for call in calls:
            with pytest.raises(PermissionDenied):
                await call()


@needs_users
async def test_a_listing_tells_no_more_than_its_user_could_see(make_sandbox: MakeSandbox, image: str) -> None:
    async with make_sandbox(image=image) as sandbox:
        made = "mkdir /names && cd /names && touch file && ln -s /root/secret link && chmod 744 /names"
        assert (await sandbox.exec(made.replace("chmod", "busybox chmod").replace("ln", "busybox ln"), user="root")).ok
        with pytest.raises(PermissionDenied):
            await sandbox.files.list("/names")
        with pytest.raises(PermissionDenied):
            await sandbox.files.stat("/names/file")
        listed = await sandbox.files.list("/names", user="root")
        assert [(each.name, each.kind, each.target) for each in listed] == [
            ("file", FileKind.FILE, None),
            ("link", FileKind.SYMLINK, "/root/secret"),
        ]
        found = await sandbox.files.stat("/names/link", user="root")
        assert (found.kind, found.target) == (FileKind.SYMLINK, "/root/secret")


@needs_users
async def test_a_file_that_is_written_again_keeps_its_owner_whoever_writes(
    make_sandbox: MakeSandbox, image: str
) -> None:
    async with make_sandbox(image=image) as sandbox:
        await sandbox.files.write("/tmp/small", "text")
        await sandbox.files.write("/tmp/large", b"0" * 100_000)
        await sandbox.files.write("/tmp/small", "more", user="root")
        await sandbox.files.write("/tmp/large", b"1" * 100_000, user="root")
        assert await owners(sandbox, "/tmp/small", "/tmp/large") == {("33", "34")}


@needs_users
@needs_python
async def test_a_code_context_runs_as_the_user_who_is_named(make_sandbox: MakeSandbox, image: str) -> None:
    code = "import os; open(f'/tmp/of-{os.getuid()}', 'w').close(); print(os.getuid(), os.getgid(), os.environ['HOME'])"
    async with make_sandbox(image=image) as sandbox:
        for user, expected in {None: "33 34 /var/web\n", "root": "0 0 /root\n", "7:8": "7 8 /\n"}.items():
            context = await sandbox.create_code_context(user=user)
            execution = await context.run(code)
            assert (execution.error, execution.stdout) == (None, expected)
            (copy,) = await context.fork()
            assert (await copy.run("print(os.getuid())")).stdout == expected.split()[0] + "\n"
        assert await owners(sandbox, "/tmp/of-33", "/tmp/of-0", "/tmp/of-7") == {("33", "34"), ("0", "0"), ("7", "8")}
        with pytest.raises(UserUnavailable, match="no user 'nobody-knows'"):
            await sandbox.create_code_context(user="nobody-knows")
        refused = await (await sandbox.create_code_context(user="web")).run("open('/etc/file', 'w')")
        assert refused.error is not None
        assert refused.error.name == "PermissionError"
        assert len(await sandbox.list_code_contexts()) == 7


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
        assert (await sandbox.info()).users is SandboxUsers.ONE
        assert (await sandbox.exec("id -u", user="web")).stdout == "33\n"
        with pytest.raises(UserUnavailable, match="create a sandbox with user='root'"):
            await sandbox.exec("id -u", user="root")
        with pytest.raises(UserUnavailable):
            await sandbox.files.write("/etc/file", "text", user="root")
    async with make_sandbox(image=image, user="root") as sandbox:
        assert (await sandbox.info()).users is SandboxUsers.EMULATED_ROOT
        assert (await sandbox.exec("id -u", user="root")).stdout == "0\n"
        with pytest.raises(UserUnavailable):
            await sandbox.create_session(user="web")
        with pytest.raises(UserUnavailable):
            await sandbox.create_code_context(user="web")
        assert await sandbox.list_code_contexts() == []


async def test_on_the_hosts_system_there_is_one_user(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        assert (await sandbox.info()).users is SandboxUsers.ONE
        assert (await sandbox.exec("id -u", user="user")).stdout == "1000\n"
        with pytest.raises(UserUnavailable, match="image"):
            await sandbox.exec("true", user="root")
        with pytest.raises(UserUnavailable):
            await sandbox.files.read("/etc/passwd", user="0")
        with pytest.raises(ValidationFailed):
            await sandbox.exec("true", user="")
