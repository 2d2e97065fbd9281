"""A patch leads from the old content to the new one, whatever both are, and is bounded."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core import unified_diff
from cove.core.unified_diff import FileState, Patch, Steps, file_diff, matches, quote

pytestmark = pytest.mark.pure

texts = st.lists(st.sampled_from(["a", "b", "c", "é", ""]), max_size=30).map("\n".join)


def state(content: bytes | None, mode: int = 0o100644) -> FileState:
    return FileState(mode, content)


def apply(old: str, patch: str) -> str:
    """What patch(1) does, and nothing more: every line that it keeps or removes has to be there."""
    lines = old.split("\n")
    if lines[-1] == "":
        lines.pop()
        lines = [line + "\n" for line in lines]
    else:
        lines = [line + "\n" for line in lines[:-1]] + [lines[-1]]
    result: list[str] = []
    at = 0
    body = patch.splitlines(keepends=True) if "\r" not in patch else re.findall(r"[^\n]*\n", patch)
    for number, line in enumerate(body):
        if found := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            start = int(found[1]) - (0 if found[2] == "0" else 1)
            result += lines[at:start]
            at = start
            continue
        if line[0] not in " +-" or line.startswith(("--- ", "+++ ")):
            continue
        content = line[1:]
        if number + 1 < len(body) and body[number + 1].startswith("\\"):
            content = content[:-1]
        if line[0] in " -":
            assert lines[at] == content
            at += 1
        if line[0] in " +":
            result.append(content)
    return "".join(result + lines[at:])


@given(texts, texts, st.sampled_from([0, 10, unified_diff.MOST_STEPS]))
def test_a_patch_leads_from_old_to_new(old: str, new: str, most: int) -> None:
    patch = file_diff(b"x", state(old.encode()), state(new.encode()), Steps(most))
    assert apply(old, patch) == new


@given(st.lists(st.integers(0, 3).map(str), max_size=20), st.lists(st.integers(0, 3).map(str), max_size=20))
def test_matches_are_runs_of_equal_lines_in_order(old: list[str], new: list[str]) -> None:
    at = (0, 0)
    for x, y, length in matches(old, new, Steps()):
        assert x >= at[0]
        assert y >= at[1]
        assert old[x : x + length] == new[y : y + length]
        at = (x + length, y + length)


def test_the_script_is_the_shortest() -> None:
    assert sum(length for *_, length in matches("ABCABBA", "CBABAC", Steps())) == 4


def test_too_many_edits_are_one_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unified_diff, "_MOST_EDITS", 2)
    assert matches("aXbYc", "PXQYR", Steps()) == []


def test_a_patch_is_what_git_writes(tmp_path: Path) -> None:
    old = "".join(f"line {number}\n" for number in range(40))
    new = old.replace("line 3\n", "line three\n").replace("line 30\n", "") + "no newline"
    (tmp_path / "old").write_text(old)
    (tmp_path / "new").write_text(new)
    written = subprocess.run(
        ["git", "diff", "--no-index", "old", "new"], cwd=tmp_path, capture_output=True, text=True, check=False
    ).stdout
    ours = file_diff(b"x", state(old.encode()), state(new.encode()), Steps())

    def hunks(text: str) -> list[str]:
        return [re.sub(r"@@ .*", "@@", line) for line in text.splitlines() if line[0] in "@ +-\\"][2:]

    assert hunks(ours) == hunks(written)
    assert "@@ -1,7 +1,7 @@\n" in ours


def test_new_and_deleted_files_name_dev_null() -> None:
    assert file_diff(b"n", None, state(b"a\n"), Steps()) == (
        "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n"
    )
    assert file_diff(b"d", state(b"a", 0o120777), None, Steps()) == (
        "diff --git a/d b/d\ndeleted file mode 120777\n--- a/d\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
        "\\ No newline at end of file\n"
    )


def test_empty_files_and_modes_have_no_hunk() -> None:
    assert file_diff(b"e", None, state(b""), Steps()) == "diff --git a/e b/e\nnew file mode 100644\n"
    assert file_diff(b"e", state(b"x"), state(b"x"), Steps()) == ""
    changed = file_diff(b"e", state(b"x"), state(b"x", 0o100755), Steps())
    assert changed == "diff --git a/e b/e\nold mode 100644\nnew mode 100755\n"


@pytest.mark.parametrize("content", [b"a\0b", b"\xff\xfe", None])
def test_what_is_no_text_is_named(content: bytes | None) -> None:
    for before, after in ((state(content), state(b"text")), (state(b"text"), state(content))):
        assert file_diff(b"b", before, after, Steps()).endswith("Binary files a/b and b/b differ\n")
    assert "Binary files" in file_diff(b"b", state(content), None, Steps())


def test_odd_names_are_quoted_as_by_git() -> None:
    assert quote(b"a/plain name") == "a/plain name"
    assert quote("a/é".encode()) == "a/é"
    assert quote(b'a/"\\\t\n\x01\xff') == '"a/\\"\\\\\\t\\n\\001\\377"'
    assert quote('a/é"'.encode()) == '"a/\\303\\251\\""'


def test_a_patch_is_cut_at_whole_files_and_says_so() -> None:
    patch = Patch(most_bytes=100)
    patch.add(b"a", None, state(b"1\n"))
    whole, was_full = patch.text(), patch.is_full
    patch.add(b"b", None, state(b"2\n" * 50))
    patch.add(b"c", None, state(b"3\n"))
    assert (was_full, patch.is_full) == (False, True)
    patch.leave_out(2)
    assert patch.text() == whole + "cut: 4 more files differ, over 100 bytes in all: name a path\n"
