"""Patches in the V4A format: parsed, applied, refused with a reason."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core.v4a_patch import (
    AddFile,
    DeleteFile,
    Hunk,
    Kind,
    UpdateFile,
    apply_hunks,
    parse_added,
    parse_hunks,
    parse_patch,
)
from cove.errors import ValidationFailed

pytestmark = pytest.mark.pure

PATCH = """
*** Begin Patch
*** Add File: new.txt
+one
+
*** Update File: old.py
*** Move to: moved.py
@@ class A:
@@     def f(self):
     a = 1
-    b = 2
+    b = 3
*** Delete File: gone.txt
*** End Patch
"""


def test_a_patch_is_parsed() -> None:
    hunk = Hunk(("class A:", "    def f(self):"), ((" ", "    a = 1"), ("-", "    b = 2"), ("+", "    b = 3")))
    assert parse_patch(PATCH) == (
        AddFile("new.txt", "one\n\n"),
        UpdateFile("old.py", (hunk,), "moved.py"),
        DeleteFile("gone.txt"),
    )


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("", "begins with"),
        ("*** Begin Patch", "begins with"),
        ("*** Begin Patch\n*** Delete File: a", "ends with"),
        ("*** Begin Patch\n*** End Patch", "changes no file"),
        ("*** Begin Patch\n+a\n*** Delete File: a\n*** End Patch", "stands before"),
        ("*** Begin Patch\n*** Add File:  \n+a\n*** End Patch", "names no file"),
        ("*** Begin Patch\n*** Add File: a\nb\n*** End Patch", "begins with '+'"),
        ("*** Begin Patch\n*** Delete File: a\n-b\n*** End Patch", "nothing stands below"),
        ("*** Begin Patch\n*** Update File: a\n*** End Patch", "has no line"),
        ("*** Begin Patch\n*** Update File: a\n@@\n*** End of File\n*** End Patch", "has no line"),
        (f"*** Begin Patch\n*** Update File: a\n@@\n{'x' * 100}\n*** End Patch", "xx…"),
    ],
)
def test_a_malformed_patch_is_refused_with_a_reason(patch: str, reason: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        parse_patch(patch)
    assert reason in refused.value.message


def test_blank_lines_around_sections_do_not_matter() -> None:
    patch = "*** Begin Patch\n\n*** Delete File: a\n\n*** Update File: b\n*** Move to: c\n\n*** End Patch"
    assert parse_patch(patch) == (DeleteFile("a"), UpdateFile("b", (), "c"))


def test_carriage_returns_of_the_patch_do_not_matter() -> None:
    assert parse_patch(PATCH.replace("\n", "\r\n")) == parse_patch(PATCH)


@pytest.mark.parametrize(
    ("content", "diff", "expected"),
    [
        ("a\nb\nc\n", "@@\n a\n-b\n+B\n c\n", "a\nB\nc\n"),
        ("a\nb", " a\n-b\n+B", "a\nB"),  # a last line without a line break stays without
        ("a\nb", " a\n-b\n", "a\n"),  # a line that stays keeps its line break
        ("a\n\nb", "-b\n", "a\n\n"),
        ("a\nb", "-b\n+\n", "a\n\n"),  # a last line that is empty needs one
        ("a\nb", "+c\n-b\n", "a\nc"),
        ("a\nb", "@@\n-a\n", "b"),
        ("a\nb", "+c", "a\nb\nc"),
        ("a", "-a\n", ""),
        ("a\nb\n", "-a\n-b\n", ""),
        ("", "+a\n", "a\n"),
        ("a\n", "+b\n", "a\nb\n"),  # an addition without a place goes to the end
        ("f\nx\ng\nx\n", "@@ g\n-x\n+y\n", "f\nx\ng\ny\n"),
        ("f\nx\n", "@@ f\n+y\n", "f\ny\nx\n"),
        ("f\nx\n", "@@ f\n+y\n*** End of File\n", "f\nx\ny\n"),
        ("x\na\nx\n", "-x\n+y\n*** End of File\n", "x\na\ny\n"),
        ("x\na\n", "-x\n+y\n*** End of File\n", "y\na\n"),  # not at the end after all
        ("  x  \n", "@@\n-x\n+y\n", "y\n"),
        ("  x\n  y\n", "@@\n-x\n@@\n-y\n", ""),
        ("x  \nz\n", "@@\n x\n-z\n", "x  \n"),  # what stays is as the file has it
        ("\tdef f():\n\t\tpass\n", "@@ def f():\n-\t\tpass\n+\t\treturn\n", "\tdef f():\n\t\treturn\n"),
        ("a\n\nb\n", "@@\n a\n\n-b\n+c\n", "a\n\nc\n"),  # a context line that lost its blank
        ("a\r\nb\r\n", "@@\n a\n-b\n+c\n", "a\r\nc\r\n"),
        ("a\nb\na\nb\n", "@@\n-b\n+1\n@@\n-b\n+2\n", "a\n1\na\n2\n"),
        ("a\nb\n", "@@ -1,2 +1,2 @@ f()\n-a\n+c\n", "c\nb\n"),  # line numbers say nothing
        ("a\na\nb\na\na\na\nb\nb\n", "@@\n a\n a\n a\n-b\n+c\n", "a\na\nb\na\na\na\nc\nb\n"),
        ("a\nb\na\nb\na\nc\n", "@@\n a\n b\n a\n-c\n", "a\nb\na\nb\na\n"),
    ],
)
def test_hunks_are_applied(content: str, diff: str, expected: str) -> None:
    assert apply_hunks(content, parse_hunks(diff)) == expected


@pytest.mark.parametrize("diff", ["@@\n-z\n", "@@ z\n-a\n", "@@\n-b\n@@\n-a\n", "@@\n" + " a\n" * 7])
def test_a_hunk_whose_lines_are_not_there_is_refused(diff: str) -> None:
    with pytest.raises(ValidationFailed, match="do not stand in the file"):
        apply_hunks("a\nb\n", parse_hunks(diff))


def test_the_content_of_a_new_file_is_parsed() -> None:
    assert parse_added("+a\n+\n+b\n") == "a\n\nb\n"
    assert parse_added("") == ""


def test_more_lines_than_the_budget_are_refused() -> None:
    with pytest.raises(ValidationFailed, match="several steps"):
        apply_hunks("a\n" * 600_000, parse_hunks("@@\n-b\n" * 9))


@pytest.mark.timed
def test_lines_that_repeat_are_searched_in_linear_time() -> None:
    began = time.process_time()
    with pytest.raises(ValidationFailed):
        apply_hunks("a\n" * 100_000, parse_hunks(" a\n" * 50_000 + "-b\n"))
    assert time.process_time() - began < 20  # comparing everywhere would take hours


_LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=6)
_EDITS = st.lists(st.tuples(st.sampled_from([" ", "-", "+"]), _LINE), min_size=1, max_size=12)


@given(edits=_EDITS, before=st.lists(_LINE, max_size=3), after=st.lists(_LINE, max_size=3))
def test_a_hunk_written_from_two_versions_leads_from_one_to_the_other(
    edits: list[tuple[Kind, str]], before: list[str], after: list[str]
) -> None:
    old = before + [text for kind, text in edits if kind != "+"] + after
    new = before + [text for kind, text in edits if kind != "-"] + after
    whole = [*((" ", line) for line in before), *edits, *((" ", line) for line in after)]
    diff = "@@\n" + "".join(kind + text + "\n" for kind, text in whole)
    assert apply_hunks(_file(old), parse_hunks(diff)) == _file(new)


@given(text=st.text(st.sampled_from("*@ +-\nab") | st.characters(), max_size=200), content=st.text(max_size=60))
def test_nothing_but_a_refusal_comes_of_garbage(text: str, content: str) -> None:
    for patch in (text, f"*** Begin Patch\n{text}\n*** End Patch", f"*** Begin Patch\n*** Update File: a\n{text}"):
        try:
            for file in parse_patch(patch):
                if isinstance(file, UpdateFile):
                    apply_hunks(content, file.hunks)
        except ValidationFailed:
            continue


def _file(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)
