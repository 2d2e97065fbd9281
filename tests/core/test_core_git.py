"""What git prints, read as from an enemy, and the command lines that are made for it."""

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core import git_command
from cove.core.git_output import parse_branches, parse_commit, parse_status
from cove.errors import GitFailed
from cove.model import GitChange, GitFile, GitStatus

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
    with pytest.raises(GitFailed):
        parse_status(data)


@pytest.mark.parametrize("data", [b"lie", b"*\0refs/tags/x\0" + SHA + b"\0", b"*\0refs/heads/x\0lie\0", b"\0" * 9])
def test_branches_that_git_does_not_print_are_an_error(data: bytes) -> None:
    with pytest.raises(GitFailed):
        parse_branches(data)


@given(
    st.binary() | st.lists(st.sampled_from([HEAD, b"1 ", b"2 R. ", MODES, b" R1 a\0", b"? x\0", b"\0"])).map(b"".join)
)
def test_whatever_is_printed_is_read_or_refused(data: bytes) -> None:
    for parse in (parse_status, parse_branches, parse_commit):
        with suppress(GitFailed):
            parse(data)


@pytest.mark.timed
@pytest.mark.parametrize("word", ["pathspec '", "branch '", "Repository ", "src refspec ", "cannot change to '", "\n"])
def test_a_complaint_without_end_is_judged_at_once_and_cut(word: str) -> None:
    began = time.thread_time()
    command = git_command.plan_status("/x")
    error = git_command.explain_failure(command, word * (131072 // len(word)), timed_out=False)
    assert time.thread_time() - began < 1  # a search from every place takes a minute
    assert len(error.message) < 3000
