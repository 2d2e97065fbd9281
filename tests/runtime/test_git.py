"""Cloning: real servers, real failures, and credentials that stay hidden."""

import asyncio
import socket
from pathlib import Path

import pytest
from support.git_server import PASSWORD, USER, git_server, make_repository, run_git

from cove import (
    AsyncSandbox,
    CoveError,
    FileExists,
    GitAuthFailed,
    GitBranchNotFound,
    GitFailed,
    GitNetworkError,
    GitNotFound,
    GitTimeout,
    ValidationFailed,
)
from cove.core.git_command import default_path, explain_failure, plan_clone, split_credentials

pytestmark = pytest.mark.anyio

MAKE = """
set -e
git config --global user.name T; git config --global user.email t@example.com
git config --global init.defaultBranch main
git init -q /tmp/origin; cd /tmp/origin
for i in 1 2 3; do echo $i > file; git add .; git commit -qm $i; done
git branch other HEAD~1; git tag v1 HEAD~2
git rev-parse HEAD
"""


@pytest.fixture
def repositories(tmp_path: Path) -> tuple[Path, str]:
    """A directory with project.git, and the commit of its main branch."""
    return tmp_path, make_repository(tmp_path)


async def test_a_clone_from_a_file_url_says_what_it_is() -> None:
    async with AsyncSandbox.create() as sandbox:
        commit = (await sandbox.exec(MAKE)).check().stdout.strip()
        clone = await sandbox.git.clone("file:///tmp/origin")
        assert (clone.path, clone.branch, clone.commit) == ("/workspace/origin", "main", commit)
        assert await sandbox.files.read("origin/file") == b"3\n"
        other = await sandbox.git.clone("/tmp/origin", "a/b", branch="other")
        assert (other.path, other.branch) == ("/workspace/a/b", "other")
        tag = await sandbox.git.clone("file:///tmp/origin", "tag", branch="v1")
        assert tag.branch is None
        assert await sandbox.files.read("tag/file") == b"1\n"
        await sandbox.git.clone("file:///tmp/origin", "shallow", depth=1)
        assert (await sandbox.exec("git -C shallow rev-list --count HEAD")).stdout == "1\n"


async def test_an_empty_repository_has_no_commit() -> None:
    async with AsyncSandbox.create() as sandbox:
        (await sandbox.exec("git init -q -b main /tmp/empty")).check()
        clone = await sandbox.git.clone("file:///tmp/empty")
        assert clone.commit is None


async def test_a_clone_over_http_needs_no_credentials_where_none_are_asked_for(
    repositories: tuple[Path, str],
) -> None:
    with git_server(repositories[0]) as (url, _):
        async with AsyncSandbox.create(network="host") as sandbox:
            clone = await sandbox.git.clone(f"{url}/project.git")
            assert (clone.path, clone.branch, clone.commit) == ("/workspace/project", "main", repositories[1])


@pytest.mark.parametrize("how", ["token", "url"])
async def test_credentials_open_the_door_and_are_found_nowhere(how: str, repositories: tuple[Path, str]) -> None:
    with git_server(repositories[0], PASSWORD) as (url, asked):
        async with AsyncSandbox.create(network="host") as sandbox:
            # Git is replaced by a shim that notes its arguments before it becomes the real one.
            shim = '#!/bin/bash\nprintf "%s\\n" "$@" >> /tmp/argv\nexec /usr/bin/git "$@"\n'
            await sandbox.files.write("/home/user/.local/bin/git", shim, mode=0o755)
            if how == "token":
                clone = await sandbox.git.clone(f"{url}/project.git", token=PASSWORD)
            else:
                quoted = PASSWORD.replace("%", "%25").replace("/", "%2F").replace("+", "%2B")
                clone = await sandbox.git.clone(url.replace("//", f"//{USER}:{quoted}@") + "/project.git")
            assert clone.commit == repositories[1]
            assert any(asked)
            assert "clone" in await sandbox.files.read_text("/tmp/argv")
            for secret in ("s3cret", "t0ken", USER):
                found = await sandbox.exec(["grep", "-rlF", secret, "/workspace", "/home/user", "/tmp"])
                assert found.stdout == ""
            assert (
                await sandbox.exec("git -C project config --get-all credential.helper; env | grep COVE_GIT")
            ).stdout == ""


@pytest.mark.parametrize("token", [None, "wrong t0ken"])
async def test_wrong_or_missing_credentials_are_an_error_without_them(
    token: str | None, repositories: tuple[Path, str]
) -> None:
    with git_server(repositories[0], PASSWORD) as (url, _):
        async with AsyncSandbox.create(network="host") as sandbox:
            with pytest.raises(GitAuthFailed) as raised:
                await sandbox.git.clone(f"{url}/project.git", token=token, timeout=60)
            assert "t0ken" not in str(raised.value) + repr(raised.value.details)
            assert await sandbox.files.list() == []


async def test_a_token_is_not_given_to_another_host(repositories: tuple[Path, str]) -> None:
    with git_server(repositories[0], PASSWORD) as (url, asked), git_server(repositories[0]) as (front, _):
        async with AsyncSandbox.create(network="host") as sandbox:
            (await sandbox.exec(f"git config --global url.{url}/.insteadOf {front}/")).check()
            with pytest.raises(GitAuthFailed):
                await sandbox.git.clone(f"{front}/project.git", token=PASSWORD)
            assert set(asked) == {""}


async def test_what_is_not_there_is_told_apart(repositories: tuple[Path, str]) -> None:
    with git_server(repositories[0]) as (url, _):
        async with AsyncSandbox.create(network="host") as sandbox:
            with pytest.raises(GitNotFound):
                await sandbox.git.clone(f"{url}/missing.git")
            with pytest.raises(GitBranchNotFound):
                await sandbox.git.clone(f"{url}/project.git", branch="missing")
            with pytest.raises(GitNotFound):
                await sandbox.git.clone("file:///tmp/missing")
            await sandbox.files.write("project/mine", b"1")
            with pytest.raises(FileExists):
                await sandbox.git.clone(f"{url}/project.git")
            assert [info.path for info in await sandbox.files.list(recursive=True)] == [
                "/workspace/project",
                "/workspace/project/mine",
            ]


async def test_a_network_that_is_not_there_is_an_error_of_the_network() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        async with AsyncSandbox.create() as sandbox:
            for url in (f"http://127.0.0.1:{port}/x.git", "https://nowhere.invalid/x.git", f"git://127.0.0.1:{port}/x"):
                with pytest.raises(GitNetworkError):
                    await sandbox.git.clone(url, timeout=60)


async def test_a_server_that_does_not_answer_is_a_timeout_and_nothing_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with AsyncSandbox.create(network="host") as sandbox:
            with pytest.raises(GitTimeout):
                await sandbox.git.clone(f"http://127.0.0.1:{server.getsockname()[1]}/x.git", timeout=0.5)
            assert await sandbox.files.list() == []
            assert not (await sandbox.exec(["pgrep", "git"])).ok


async def test_a_cancelled_clone_leaves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        async with AsyncSandbox.create(network="host") as sandbox:
            cloning = asyncio.create_task(sandbox.git.clone(f"http://127.0.0.1:{server.getsockname()[1]}/x.git"))
            connection, _ = await asyncio.to_thread(server.accept)
            with connection:
                cloning.cancel()
                await asyncio.wait([cloning])
            assert cloning.cancelled()
            assert await sandbox.files.list() == []
            assert not (await sandbox.exec(["pgrep", "git"])).ok


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": ""},
        {"url": "https://host/x\ny"},
        {"url": "https://host/x", "depth": 0},
        {"url": "https://host/x", "depth": True},
        {"url": "https://host/x", "branch": ""},
        {"url": "https://host/x", "token": "a\nb"},
        {"url": "file:///x", "token": "t"},
        {"url": "https://host/x", "path": ""},
        {"url": "https://host/x", "timeout": -1},
        {"url": "/"},
    ],
)
async def test_bad_arguments_are_refused_before_anything_runs(arguments: dict[str, object]) -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(ValidationFailed):
            await sandbox.git.clone(**arguments)  # type: ignore[arg-type]  # on purpose
        assert await sandbox.files.list() == []


async def test_a_url_that_looks_like_an_option_is_no_option() -> None:
    async with AsyncSandbox.create() as sandbox:
        with pytest.raises(CoveError):
            await sandbox.git.clone("--upload-pack=touch /tmp/evil", "x")
        assert not await sandbox.files.exists("/tmp/evil")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://host/a/b.git", "b"),
        ("https://host/a/b/", "b"),
        ("git@host:b.git", "b"),
        ("/srv/x/.git", "x"),
        ("ssh://host/~me/c", "c"),
    ],
)
def test_the_directory_is_named_like_the_repository(url: str, expected: str) -> None:
    assert default_path(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://u:p%40@host:8443/x?y", ("https://host:8443/x?y", "u", "p@")),
        ("https://u@host/x", ("https://host/x", "u", None)),
        ("https://host/x", ("https://host/x", None, None)),
        ("git@host:x", ("git@host:x", None, None)),
    ],
)
def test_credentials_are_taken_out_of_a_url(url: str, expected: tuple[str, str | None, str | None]) -> None:
    assert split_credentials(url) == expected


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        ("fatal: Authentication failed for 'https://host/x/'", GitAuthFailed),
        ("fatal: could not read Username for 'https://host': terminal prompts disabled", GitAuthFailed),
        ("git@host: Permission denied (publickey).\nfatal: Could not read from remote repository.", GitAuthFailed),
        ("fatal: Remote branch x not found in upstream origin", GitBranchNotFound),
        ("fatal: repository 'https://host/x/' not found", GitNotFound),
        ("ERROR: Repository not found.\nfatal: Could not read from remote repository.", GitNotFound),
        ("fatal: unable to access 'https://host/': Could not resolve host: host", GitNetworkError),
        ("ssh: connect to host h port 22: Connection refused", GitNetworkError),
        ("fatal: something new", GitFailed),
    ],
)
def test_what_git_says_becomes_the_error_it_means(complaint: str, kind: type[CoveError]) -> None:
    clone = plan_clone("https://host/x", None, branch=None, depth=None, token="hidden")
    error = explain_failure(clone.command, f"{complaint} hidden", timed_out=False)
    assert type(error) is kind
    assert "hidden" not in error.message


@pytest.fixture
def writable(repositories: tuple[Path, str]) -> Path:
    """The same directory, whose repository takes what is pushed by anybody."""
    run_git("config", "http.receivepack", "true", cwd=repositories[0] / "project.git")
    return repositories[0]


AUTHOR = "Some Body <some@example.com>"
# Notes what it is told and what it finds in its environment, and becomes the real git.
SHIM = '#!/bin/bash\nprintf "%s\\n" "$@" >> /tmp/argv\nexec /usr/bin/git "$@"\n'
HOOK = "#!/bin/sh\nenv > /tmp/hook\n"


async def clone_and_commit(sandbox: AsyncSandbox, address: str) -> None:
    await sandbox.files.write("/home/user/.local/bin/git", SHIM, mode=0o755)
    await sandbox.git.clone(address, "work", token=PASSWORD)
    await sandbox.files.write("work/file", "changed\n")
    await sandbox.git.commit("changed", "work", all=True, author=AUTHOR)
    for hook in ("pre-push", "post-merge", "reference-transaction"):
        await sandbox.files.write(f"work/.git/hooks/{hook}", HOOK, mode=0o755)


async def test_push_and_pull_have_credentials_that_are_found_nowhere(writable: Path) -> None:
    with git_server(writable, PASSWORD) as (url, _):
        address = f"{url}/project.git"
        quoted = PASSWORD.replace("%", "%25").replace("/", "%2F").replace("+", "%2B")
        async with AsyncSandbox.create(network="host") as sandbox:
            await clone_and_commit(sandbox, address)
            await sandbox.git.push("work", token=PASSWORD, url=address)
            commit = (await sandbox.git.status("work")).commit
            assert run_git("rev-parse", "main", cwd=writable / "project.git").strip() == commit
            await sandbox.git.push("work", remote=address.replace("//", f"//{USER}:{quoted}@"), branch="main")
            assert (await sandbox.git.pull("work", token=PASSWORD, url=url)).commit == commit
            said = await sandbox.files.read_text("/tmp/argv")
            assert all(word in said for word in ("push", "pull"))
            for secret in ("s3cret", "t0ken", USER):
                found = await sandbox.exec(["grep", "-rlF", secret, "/workspace", "/home/user", "/tmp"])
                assert found.stdout == ""
            assert not await sandbox.files.exists("/tmp/hook")


@pytest.mark.parametrize("token", [None, "wrong t0ken"])
async def test_push_and_pull_without_the_right_credentials_are_an_error_without_them(
    token: str | None, writable: Path
) -> None:
    with git_server(writable, PASSWORD) as (url, _):
        address = f"{url}/project.git"
        async with AsyncSandbox.create(network="host") as sandbox:
            await clone_and_commit(sandbox, address)
            for call in (sandbox.git.push, sandbox.git.pull):
                with pytest.raises(GitAuthFailed) as raised:
                    await call("work", token=token, url=address, timeout=60)
                assert "t0ken" not in str(raised.value) + repr(raised.value.details)


async def test_code_inside_cannot_lead_a_token_to_another_host(writable: Path) -> None:
    with git_server(writable, PASSWORD) as (url, _), git_server(writable, "other") as (elsewhere, asked):
        address = f"{url}/project.git"
        async with AsyncSandbox.create(network="host") as sandbox:
            await clone_and_commit(sandbox, address)
            (await sandbox.exec(f"git remote set-url origin {elsewhere}/project.git", cwd="work")).check()
            for call in (sandbox.git.push, sandbox.git.pull):
                with pytest.raises(GitAuthFailed):
                    await call("work", token=PASSWORD, url=address, timeout=60)
            (await sandbox.exec(f"git config --global url.{elsewhere}/.insteadOf {url}/")).check()
            with pytest.raises(GitAuthFailed):
                await sandbox.git.push("work", remote=address, token=PASSWORD, timeout=60)
            assert set(asked) == {""}


async def test_hooks_run_inside_where_there_is_no_token(writable: Path) -> None:
    with git_server(writable) as (url, _):
        async with AsyncSandbox.create(network="host") as sandbox:
            await clone_and_commit(sandbox, f"{url}/project.git")
            await sandbox.git.push("work")
            assert "COVE_GIT_TOKEN" not in await sandbox.files.read_text("/tmp/hook")
