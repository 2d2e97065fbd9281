"""What git prints, read as from an enemy, and the command lines that are made for it."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove import errors
from cove.core import git_command
from cove.core.git_command import GitCommand
from cove.core.git_output import parse_branches, parse_commit, parse_status
from cove.model import GitBranch, GitChange, GitFile, GitStatus

pytestmark = pytest.mark.pure

SHA = b"0123456789abcdef0123456789abcdef01234567"
HEAD = b"# branch.oid " + SHA + b"\0# branch.head main\0"
MODES = b"N... 100644 100644 100644 " + SHA + b" " + SHA


def test_a_status_is_read_record_by_record() -> None:
    data = (
        HEAD
        + b"# branch.upstream origin/main\0# branch.ab +2 -13\0# stash 3\0"
        + b"1 .M "
        + MODES
        + b" a b\xff\0"
        + b"2 R. "
        + MODES
        + b" R100 new\nname\0old name\0"
        + b"u UU N... 1 1 1 1 a b c both\0"
        + b"? dir/\0"
    )
    assert parse_status(data) == GitStatus(
        branch="main",
        commit=SHA.decode(),
        upstream="origin/main",
        ahead=2,
        behind=13,
        files=(
            GitFile(path="a b\udcff", staged=GitChange.UNMODIFIED, unstaged=GitChange.MODIFIED),
            GitFile(path="new\nname", staged=GitChange.RENAMED, unstaged=GitChange.UNMODIFIED, old_path="old name"),
            GitFile(path="both", staged=GitChange.UNMERGED, unstaged=GitChange.UNMERGED, is_conflicted=True),
            GitFile(path="dir/", staged=GitChange.UNMODIFIED, unstaged=GitChange.UNTRACKED),
        ),
    )


def test_without_a_commit_or_a_branch_there_is_none() -> None:
    assert parse_status(b"# branch.oid (initial)\0# branch.head main\0").commit is None
    assert parse_status(HEAD.replace(b"main", b"(detached)")).branch is None
    assert parse_commit(b"\n") is None
    assert parse_commit(SHA + b"\n") == SHA.decode()
    assert parse_branches(b"") == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"lie",
        HEAD[:-1],
        b"# branch.head main\0",
        b"# branch.oid lie\0# branch.head main\0",
        HEAD + b"# branch.ab +1\0",
        HEAD + b"# branch.ab +" + b"9" * 5000 + b" -1\0",
        HEAD + b"1 MM \0",
        HEAD + b"1 M " + MODES + b" path\0",
        HEAD + b"1 XM " + MODES + b" path\0",
        HEAD + b"2 R. " + MODES + b" R100 new\0",
        HEAD + b"x MM " + MODES + b" path\0",
        HEAD + b"\0",
    ],
)
def test_a_status_that_git_does_not_print_is_an_error(data: bytes) -> None:
    with pytest.raises(errors.GitFailed):
        parse_status(data)


@pytest.mark.parametrize("data", [b"lie", b"*\0refs/tags/x\0" + SHA + b"\0", b"*\0refs/heads/x\0lie\0", b"\0" * 9])
def test_branches_that_git_does_not_print_are_an_error(data: bytes) -> None:
    with pytest.raises(errors.GitFailed):
        parse_branches(data)


@given(
    st.binary() | st.lists(st.sampled_from([HEAD, b"1 ", b"2 R. ", MODES, b" R1 a\0", b"? x\0", b"\0"])).map(b"".join)
)
def test_whatever_is_printed_is_read_or_refused(data: bytes) -> None:
    for parse in (parse_status, parse_branches, parse_commit):
        with suppress(errors.GitFailed):
            parse(data)


@pytest.mark.timed
@pytest.mark.parametrize("word", ["pathspec '", "branch '", "Repository ", "src refspec ", "cannot change to '", "\n"])
def test_a_complaint_without_end_is_judged_at_once_and_cut(word: str) -> None:
    began = time.thread_time()
    command = git_command.plan_status("/x")
    error = git_command.explain_failure(command, word * (131072 // len(word)), timed_out=False)
    assert time.thread_time() - began < 1  # a search from every place takes a minute
    assert len(error.message) < 3000


def words_of(command: GitCommand) -> tuple[str, ...]:
    """What follows `git -C /w`."""
    assert command.argv[:3] == ("git", "-C", "/w")
    return command.argv[3:]


def commit(message: str = "m", *, author: str | None = None) -> GitCommand:
    return git_command.plan_commit("/w", message, everything=False, allow_empty=False, author=author)


def push(remote: str = "origin", branch: str | None = None, **said: str | None) -> GitCommand:
    given: dict[str, str | None] = {"token": None, "url": None, **said}
    return git_command.plan_push(
        "/w", remote, branch, force=False, set_upstream=False, token=given["token"], url=given["url"]
    )


def pull(remote: str | None, branch: str | None = None, *, rebase: bool = False) -> GitCommand:
    return git_command.plan_pull("/w", remote, branch, rebase=rebase, token=None, url=None)


def clone(url: str, path: str | None = None, depth: int | None = None, token: str | None = None) -> git_command.Clone:
    return git_command.plan_clone(url, path, branch=None, depth=depth, token=token)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (git_command.plan_status("/w"), "status --porcelain=v2 --branch -z --untracked-files=normal"),
        (git_command.plan_diff("/w", None, [], staged=False), "diff --no-color --no-ext-diff --no-textconv --"),
        (
            git_command.plan_diff("/w", "main", ["-a", "b"], staged=True),
            "diff --no-color --no-ext-diff --no-textconv --staged main -- -a b",
        ),
        (git_command.plan_add("/w", None), "add --all"),
        (git_command.plan_add("/w", ["a"]), "add --pathspec-from-file=- --pathspec-file-nul"),
        (commit(), "commit --quiet --file=-"),
        (
            git_command.plan_commit("/w", "m", everything=True, allow_empty=True, author=None),
            "commit --quiet --file=- --all --allow-empty",
        ),
        (push(), "push --quiet -- origin HEAD"),
        (
            git_command.plan_push("/w", "up", "b", force=True, set_upstream=True, token=None, url=None),
            "push --quiet --force --set-upstream -- up refs/heads/b:refs/heads/b",
        ),
        (pull(None), "pull --quiet --no-edit --no-rebase --"),
        (pull("origin", "b", rebase=True), "pull --quiet --no-edit --rebase -- origin b"),
        (git_command.plan_branch("/w", "b", None, delete=False, force=False), "branch --quiet b"),
        (git_command.plan_branch("/w", "b", "v1", delete=False, force=True), "branch --quiet --force b v1"),
        (git_command.plan_branch("/w", "b", None, delete=True, force=False), "branch --quiet --delete b"),
        (git_command.plan_checkout("/w", "v1", create=False, force=True), "checkout --quiet --force v1 --"),
        (git_command.plan_checkout("/w", "b", create=True, force=False), "checkout --quiet -b b"),
        (git_command.plan_commit_name("/w"), "rev-parse --verify --quiet HEAD"),
        (git_command.plan_branch_name("/w"), "symbolic-ref --short --quiet HEAD"),
    ],
)
def test_a_call_is_one_command_line(command: GitCommand, words: str) -> None:
    assert words_of(command) == tuple(words.split())
    assert command.env["GIT_TERMINAL_PROMPT"] == "0"


def test_branches_are_listed_with_fields_that_the_parser_reads() -> None:
    assert words_of(git_command.plan_branches("/w"))[0] == "for-each-ref"
    listed = b"*\0refs/heads/main\0" + SHA + b"\0origin/main\n \0refs/heads/b\0" + SHA + b"\0\n"
    assert parse_branches(listed) == [
        GitBranch(name="main", commit=SHA.decode(), is_current=True, upstream="origin/main"),
        GitBranch(name="b", commit=SHA.decode()),
    ]


def test_paths_and_messages_travel_in_standard_input() -> None:
    assert git_command.plan_add("/w", ["-a", "b\nc\udcff"]).stdin == b"-a\0b\nc\xff\0"
    assert commit("--amend\n").stdin == b"--amend\n"


def test_an_author_is_the_committer_too() -> None:
    env = commit(author="Ann O. <ann@example.com>").env
    assert [env[f"GIT_{role}_NAME"] for role in ("AUTHOR", "COMMITTER")] == ["Ann O."] * 2
    assert [env[f"GIT_{role}_EMAIL"] for role in ("AUTHOR", "COMMITTER")] == ["ann@example.com"] * 2


@pytest.mark.parametrize("name", ["-b", "a b", "a..b", "a.lock", "a/", "@", "HEAD", "a\tb", "a~1", "+a", "x@{y"])
def test_what_cannot_be_a_branch_is_refused_before_git_sees_it(name: str) -> None:
    plans: list[Callable[[], GitCommand]] = [
        lambda: push(branch=name),
        lambda: pull("origin", name),
        lambda: git_command.plan_branch("/w", name, None, delete=False, force=False),
        lambda: git_command.plan_checkout("/w", name, create=True, force=False),
    ]
    for plan in plans:
        with pytest.raises(errors.ValidationFailed, match="branch"):
            plan()


PATHS: Sequence[str] = "a"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda: git_command.plan_diff("/w", "--output=/x", [], staged=False), "base must be"),
        (lambda: git_command.plan_diff("/w", None, PATHS, staged=False), "list of strings"),
        (lambda: git_command.plan_diff("/w", None, 5, staged=False), "list of strings"),  # type: ignore[arg-type]
        (lambda: git_command.plan_diff("/w", None, [""], staged=False), "a path is empty"),
        (lambda: git_command.plan_add("/w", []), "paths is empty"),
        (lambda: commit(" \n"), "message is empty"),
        (lambda: commit(author="Ann"), "author must look like"),
        (lambda: commit(author="Ann\n<a@b>"), "author must be one line"),
        (lambda: pull(None, "b"), "name the remote too"),
        (lambda: push("--exec=x"), "remote must be"),
        (lambda: push("origin", token="t"), "one host only"),
        (lambda: push("origin", token="t", url="ssh://host/x"), "http and https URLs only"),
        (lambda: push("origin", token="", url="https://host/x"), "token must be one line"),
        (lambda: git_command.plan_branch("/w", "b", "v1", delete=True, force=False), "has no start"),
        (lambda: git_command.plan_checkout("/w", "-f", create=False, force=False), "ref must be"),
        (lambda: clone("https://host/x", depth=0), "depth must be"),
        (lambda: clone("https://host/x", depth=True), "depth must be"),
        (lambda: clone("https://host/x", depth="1"), "depth must be"),  # type: ignore[arg-type]
        (lambda: clone(""), "url must be one line"),
        (lambda: clone("https://host/x", "a\nb"), "path must be one line"),
        (lambda: clone("https://host/.."), "give a path"),
        (lambda: clone("/"), "give a path"),
    ],
)
def test_arguments_that_git_would_take_for_something_else_are_refused(plan: Callable[[], object], message: str) -> None:
    with pytest.raises(errors.ValidationFailed, match=message):
        plan()


def answers_for(command: GitCommand) -> str:
    """The setting that says for which place git is given the secret."""
    return command.env["GIT_CONFIG_KEY_1"]


def test_a_token_is_in_the_environment_for_its_host_only_and_never_in_the_command_line() -> None:
    command = push("origin", token="s3cret/", url="https://host:8443/x")
    assert command.env["COVE_GIT_TOKEN"] == "s3cret/"
    assert answers_for(command) == "credential.https://host:8443.helper"
    assert command.env["GIT_CONFIG_VALUE_0"] == ""  # helpers of the repository's own configuration are forgotten
    assert "s3cret" not in " ".join(command.argv)
    assert command.hide("s3cret/ s3cret%2F") == "*** ***"


def test_a_password_in_a_url_is_taken_out_of_it() -> None:
    command = push("https://ann:p%40ss@host/x")
    assert words_of(command)[-2] == "https://host/x"
    assert (command.env["COVE_GIT_USER"], command.env["COVE_GIT_TOKEN"]) == ("ann", "p@ss")
    assert answers_for(command) == "credential.https://host.helper"


def test_a_token_goes_before_the_password_of_a_url() -> None:
    assert clone("https://:old@host/x", token="new").command.env["COVE_GIT_TOKEN"] == "new"


def test_without_a_secret_git_is_given_none() -> None:
    for command in (push("https://host/x"), push("git@host:x"), clone("https://host/x").command):
        assert "COVE_GIT_TOKEN" not in command.env
        assert command.secrets == ()


def test_a_clone_takes_a_branch_and_a_depth() -> None:
    made = git_command.plan_clone("https://host/x.git", "there", branch="b", depth=2, token=None)
    words = "git clone --quiet --branch b --depth 2 -- https://host/x.git there"
    assert made.command.argv == tuple(words.split())
    assert made.path == "there"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://host/a/name", "name"),
        ("https://host/a/name.git/", "name"),
        ("/srv/name/.git", "name"),
        ("git@host:name.git", "name"),
        ("name", "name"),
    ],
)
def test_a_clone_is_named_as_git_names_it(url: str, path: str) -> None:
    assert clone(url).path == path


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        ("fatal: destination path 'x' already exists and is not an empty directory.", errors.FileExists),
        ("fatal: cannot change to '/w': No such file or directory", errors.FileNotFound),
        ("fatal: cannot change to '/w': Not a directory", errors.NotDirectory),
        ("fatal: a branch named 'b' already exists", errors.GitBranchExists),
        ("fatal: invalid reference: b", errors.GitBranchNotFound),
        ("nothing to commit, working tree clean", errors.GitNothingToCommit),
        ("first\nCONFLICT (content): Merge conflict in a", errors.GitConflict),
        ("fatal: Authentication failed for 'https://host/x'", errors.GitAuthFailed),
        ("fatal: unable to access: Could not resolve host: host", errors.GitNetworkError),
        (" ! [rejected]        b -> b (fetch first)", errors.GitRejected),
        ("fatal: not a git repository (or any of the parent directories): .git", errors.GitNotFound),
        ("fatal: something else", errors.GitFailed),
    ],
)
def test_a_complaint_becomes_the_error_that_says_what_to_do(complaint: str, kind: type[errors.CoveError]) -> None:
    error = git_command.explain_failure(git_command.plan_status("/w"), complaint, timed_out=False)
    assert type(error) is kind
    assert error.message == f"git status in /w: {complaint.strip()}"


def test_an_error_tells_no_secret_and_is_cut_in_the_middle() -> None:
    command = push("https://ann:s3cret@host/x")
    error = git_command.explain_failure(command, "begin s3cret " + "x" * 9000 + " s3cret end", timed_out=False)
    assert "s3cret" not in error.message
    assert "begin ***" in error.message
    assert error.message.endswith("*** end")
    assert len(error.message) < 3000


def test_a_command_that_took_too_long_is_named_whatever_it_said() -> None:
    error = git_command.explain_failure(git_command.plan_status("/w"), "CONFLICT", timed_out=True)
    assert type(error) is errors.GitTimeout
    assert "git status in /w" in error.message
