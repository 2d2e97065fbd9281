"""Patterns of `.dockerignore` and of COPY mean what Docker says they mean."""

import pytest

from cove.errors import ValidationFailed
from cove.images.dockerignore import MOST_BYTES, MOST_PATTERNS, Ignore, match_name, split

pytestmark = pytest.mark.pure


def hides(text: str, path: str) -> bool:
    return Ignore(text.encode()).hides(tuple(path.encode().split(b"/")))


@pytest.mark.parametrize(
    ("text", "hidden", "seen"),
    [
        ("", [], ["a", ".git/config"]),
        ("# a comment\n\n  \nnode_modules\n", ["node_modules", "node_modules/a/b"], ["a/node_modules", "# a comment"]),
        ("/top\n./other/\n", ["top", "top/x", "other"], ["a/top"]),
        ("*.log", ["a.log"], ["d/a.log", "a.log.txt"]),
        ("**/*.log", ["a.log", "d/a.log", "d/e/a.log"], ["d/a.txt"]),
        ("d/**", ["d/a", "d/e/a"], ["e/d"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["a/b", "z"]),
        ("temp?\n[ab].c\n[^x]y\n", ["temp1", "a.c", "zy"], ["temp", "temp12", "c.c", "xy"]),
        ("*\n!keep\n!d/keep\n", ["a", "d", "d/other"], ["keep", "keep/x", "d/keep"]),
        ("d\n!d/keep\nd/keep/not\n", ["d/x", "d/keep/not"], ["d/keep", "d/keep/yes"]),
        ("a/../b\n", ["b"], ["a"]),
        ("\ufeffb\n", ["b"], ["a"]),
    ],
)
def test_the_last_pattern_that_matches_decides(text: str, hidden: list[str], seen: list[str]) -> None:
    assert [path for path in hidden if not hides(text, path)] == []
    assert [path for path in seen if hides(text, path)] == []


def test_no_pattern_makes_the_search_long() -> None:
    """One that backtracks is still at it when the test's time is over."""
    assert not match_name(b"*a" * 60 + b"b", b"a" * 250)
    assert not hides("**/a/" * 60 + "b", "/".join("a" * 150))
    assert not hides(("**/" * 300 + "b\n") * MOST_PATTERNS, "/".join("a" * 150))


def test_what_is_too_large_is_refused() -> None:
    for text in (b"#" * (MOST_BYTES + 1), b"a\n" * (MOST_PATTERNS + 1)):
        with pytest.raises(ValidationFailed, match="dockerignore"):
            Ignore(text)


def test_a_path_is_cleaned_and_may_still_lead_out() -> None:
    assert split(b"./a//b/../c/") == (b"a", b"c")
    assert split(b"a/../../b") == (b"..", b"b")
    assert split(b"/") == ()
