"""Git, whatever way the sandbox is reached."""

import pytest
from support.serving import MakeSandbox

from cove import (
    AsyncSandbox,
    FileNotFound,
    FileTooLarge,
    GitBranch,
    GitBranchExists,
    GitBranchNotFound,
    GitChange,
    GitConflict,
    GitFailed,
    GitFile,
    GitHead,
    GitNotFound,
    GitNothingToCommit,
    GitRejected,
    GitTimeout,
    NotDirectory,
    ValidationFailed,
)

pytestmark = [pytest.mark.anyio, pytest.mark.pure]

AUTHOR = "Some Body <some@example.com>"
ODD_NAMES = ["a b", "ü", "-n", "*", "new\nline", "\udcff\udcfe", "tab\t", '"quoted"', ":(top)x"]
# A bare repository with one commit, and two clones of it in the workspace.
MAKE = """
set -e
git config --global user.name T; git config --global user.email t@example.com
git config --global init.defaultBranch main
git init -q --bare /tmp/origin.git
for name in one two; do git clone -q /tmp/origin.git $name 2>/dev/null; done
cd one; echo 1 > file; git add .; git commit -qm first; git push -q origin main; cd ../two; git pull -q origin main
git branch -q --set-upstream-to=origin/main main
"""


async def make(sandbox: AsyncSandbox) -> None:
    (await sandbox.exec(MAKE)).check()


async def commit_in(sandbox: AsyncSandbox, name: str, content: str) -> GitHead:
    """A commit that changes `file` in one of the clones."""
    await sandbox.files.write(f"{name}/file", content)
    return await sandbox.git.commit(f"as {content}", name, all=True)


async def test_a_change_goes_from_file_to_commit(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        git, files = sandbox.git, sandbox.files
        (await sandbox.exec("git init -q -b main repo")).check()
        status = await git.status("repo")
        assert (status.branch, status.commit, status.is_clean) == ("main", None, True)
        await files.write("repo/file", "old\n")
        untracked = GitFile(path="file", staged=GitChange.UNMODIFIED, unstaged=GitChange.UNTRACKED)
        assert (await git.status("repo")).files == (untracked,)
        await git.add(["file"], "repo")
        added = GitFile(path="file", staged=GitChange.ADDED, unstaged=GitChange.UNMODIFIED)
        assert (await git.status("repo")).files == (added,)
        head = await git.commit("first\n\n# a line", "repo", author=AUTHOR)
        assert head == GitHead(branch="main", commit=(await git.status("repo")).commit)
        shown = await sandbox.exec("git -C repo log -1 --format='%an %ae %cn%n%B'")
        assert shown.stdout.strip() == "Some Body some@example.com Some Body\nfirst\n\n# a line"
        await files.write("repo/file", "new\n")
        assert "-old\n+new\n" in await git.diff("repo")
        assert await git.diff("repo", staged=True) == ""
        assert await git.diff("repo", paths=["other"]) == ""
        await git.add(path="repo")
        assert "-old\n+new\n" in await git.diff("repo", staged=True)
        assert "-old\n+new\n" in await git.diff("repo", base="HEAD")
        await git.commit("second", "repo", author=AUTHOR)
        assert (await git.status("repo")).is_clean


async def test_names_of_all_kinds_are_names_and_no_patterns_or_options(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        (await sandbox.exec("git init -q -b main repo")).check()
        for name in [*ODD_NAMES, "other"]:
            await sandbox.files.write(f"repo/{name}", name.encode("utf-8", "surrogateescape"))
        await sandbox.git.add(ODD_NAMES, "repo")
        status = await sandbox.git.status("repo")
        assert {each.path for each in status.files if each.staged is GitChange.ADDED} == set(ODD_NAMES)
        assert [each.path for each in status.files if each.unstaged is GitChange.UNTRACKED] == ["other"]
        assert "a b" in await sandbox.git.diff("repo", paths=["a b"], staged=True)
        await sandbox.git.commit("-m --amend", "repo", author=AUTHOR)
        (await sandbox.exec(["git", "-C", "repo", "mv", "a b", "c d"])).check()
        renamed = GitFile(path="c d", staged=GitChange.RENAMED, unstaged=GitChange.UNMODIFIED, old_path="a b")
        assert renamed in (await sandbox.git.status("repo")).files


async def test_branches_are_made_listed_checked_out_and_deleted(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await make(sandbox)
        git = sandbox.git
        first = (await git.status("two")).commit
        assert first is not None
        second = await commit_in(sandbox, "two", "2\n")
        await git.branch("old", "two", start="HEAD~1")
        assert await git.branches("two") == [
            GitBranch(name="main", commit=second.commit or "", is_current=True, upstream="origin/main"),
            GitBranch(name="old", commit=first),
        ]
        assert await git.checkout("old", "two") == GitHead(branch="old", commit=first)
        assert await sandbox.files.read_text("two/file") == "1\n"
        assert await git.checkout("new/one", "two", create=True) == GitHead(branch="new/one", commit=first)
        assert await git.checkout(second.commit or "", "two") == GitHead(branch=None, commit=second.commit)
        assert (await git.status("two")).branch is None
        await git.branch("new/one", "two", delete=True)
        await commit_in(sandbox, "two", "3\n")
        await git.branch("kept", "two")
        await git.checkout("main", "two")
        with pytest.raises(GitConflict):
            await git.branch("kept", "two", delete=True)
        await git.branch("kept", "two", delete=True, force=True)
        assert [each.name for each in await git.branches("two")] == ["main", "old"]


async def test_commits_travel_by_push_and_pull(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await make(sandbox)
        git = sandbox.git
        pushed = await commit_in(sandbox, "one", "2\n")
        await git.push("one")
        assert await git.pull("two") == GitHead(branch="main", commit=pushed.commit)
        mine = await commit_in(sandbox, "two", "3\n")
        status = await git.status("two")
        assert (status.upstream, status.ahead, status.behind) == ("origin/main", 1, 0)
        await git.push("two", branch="main")
        assert await git.pull("one", remote="origin", branch="main") == GitHead(branch="main", commit=mine.commit)
        await git.checkout("topic", "one", create=True)
        await git.push("one", set_upstream=True)
        assert (await git.status("one")).upstream == "origin/topic"


async def test_what_contradicts_is_told_apart(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await make(sandbox)
        git = sandbox.git
        await commit_in(sandbox, "one", "2\n")
        await git.push("one")
        await commit_in(sandbox, "two", "3\n")
        with pytest.raises(GitRejected):
            await git.push("two")
        with pytest.raises(GitConflict):
            await git.pull("two")
        (conflict,) = (await git.status("two")).files
        assert (conflict.path, conflict.is_conflicted) == ("file", True)
        await sandbox.files.write("two/file", "both\n")
        await git.commit("merged", "two", all=True)
        await git.push("two")
        assert (await git.pull("one", rebase=True)).commit == (await git.status("two")).commit
        await git.branch("past", "one", start="HEAD~1")
        await sandbox.files.write("one/file", "mine\n")
        with pytest.raises(GitConflict):
            await git.checkout("past", "one")
        assert (await git.checkout("past", "one", force=True)).branch == "past"


async def test_what_is_not_there_is_told_apart(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await make(sandbox)
        git = sandbox.git
        await sandbox.files.mkdir("plain")
        for read in (git.status, git.diff, git.branches):
            with pytest.raises(GitNotFound):
                await read("plain")
        with pytest.raises(FileNotFound):
            await git.status("missing")
        with pytest.raises(NotDirectory):
            await git.status("one/file")
        with pytest.raises(FileNotFound):
            await git.add(["missing"], "one")
        for ref in ("missing", "file"):
            with pytest.raises(GitBranchNotFound):
                await git.checkout(ref, "one")
        with pytest.raises(GitBranchNotFound):
            await git.diff("one", base="missing")
        with pytest.raises(GitBranchNotFound):
            await git.push("one", branch="missing")
        with pytest.raises(GitBranchNotFound):
            await git.branch("missing", "one", delete=True)
        with pytest.raises(GitBranchNotFound):
            await git.pull("one", remote="origin", branch="missing")
        with pytest.raises(GitBranchExists):
            await git.branch("main", "one")
        with pytest.raises(GitNothingToCommit):
            await git.commit("nothing", "one")
        assert (await git.commit("nothing", "one", allow_empty=True)).branch == "main"
        with pytest.raises(GitNotFound):
            await git.push("one", remote="nowhere")


async def test_a_patch_has_a_bound_and_the_time_too(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await make(sandbox)
        await sandbox.files.write("one/file", "x" * (1 << 20) + "\n")
        with pytest.raises(FileTooLarge):
            await sandbox.git.diff("one")
        assert len(await sandbox.git.diff("one", max_bytes=2 << 20)) > 1 << 20
        await sandbox.files.write("one/.git/hooks/pre-commit", "#!/bin/sh\nsleep 1000\n", mode=0o755)
        with pytest.raises(GitTimeout):
            await sandbox.git.commit("never", "one", all=True, timeout=0.5)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("status", {"path": ""}),
        ("status", {"path": "a\0b"}),
        ("status", {"timeout": -1}),
        ("diff", {"base": "--output=/tmp/evil"}),
        ("diff", {"paths": "file"}),
        ("diff", {"max_bytes": -1}),
        ("add", {"paths": []}),
        ("add", {"paths": [""]}),
        ("commit", {"message": " \n"}),
        ("commit", {"message": "m", "author": "nobody"}),
        ("commit", {"message": "m", "author": "a <b@c>\nx <y@z>"}),
        ("push", {"remote": "--receive-pack=touch /tmp/evil"}),
        ("push", {"branch": "+main"}),
        ("push", {"branch": ":main"}),
        ("push", {"branch": "a..b"}),
        ("push", {"token": "t"}),
        ("push", {"token": "t", "url": "ssh://host/x"}),
        ("push", {"token": "a\nb", "url": "https://host/x"}),
        ("pull", {"token": "t", "remote": "origin"}),
        ("pull", {"branch": "main"}),
        ("branch", {"name": "-D"}),
        ("branch", {"name": "a b"}),
        ("branch", {"name": "x", "start": "--edit-description"}),
        ("branch", {"name": "x", "start": "main", "delete": True}),
        ("checkout", {"ref": "--orphan=x"}),
        ("checkout", {"ref": "x~1", "create": True}),
        ("checkout", {"ref": ""}),
    ],
)
async def test_bad_arguments_are_refused_before_anything_runs(
    make_sandbox: MakeSandbox, method: str, arguments: dict[str, object]
) -> None:
    async with make_sandbox() as sandbox:
        with pytest.raises(ValidationFailed):
            await getattr(sandbox.git, method)(**arguments)
        assert not await sandbox.files.exists("/tmp/evil")


async def test_a_git_that_lies_is_an_error_and_costs_bounded_memory(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        await make(sandbox)
        shim = "/home/user/.local/bin/git"
        for lie in (
            "echo lie",
            r"printf '1 MM \0'",
            r"printf '2 R. N... 1 1 1 a b R100 x\0'",
            "yes",
            "head -c 9M /dev/zero",
        ):
            await sandbox.files.write(shim, f"#!/bin/bash\n{lie} | head -c 64M\n", mode=0o755)
            with pytest.raises(GitFailed):
                await sandbox.git.status("one")
            if "zero" not in lie:
                with pytest.raises(GitFailed):
                    await sandbox.git.branches("one")
