"""Glob patterns mean what they mean in bash, and no pattern with any name takes long."""

import subprocess
import time
from functools import lru_cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cove.agent.pattern import name_matcher, path_matcher

pytestmark = pytest.mark.pure

_names = st.text("ab.-!^]", min_size=1, max_size=8)
_patterns = st.lists(
    st.sampled_from(["*", "?", "a", "b", ".", "-", "[ab]", "[!a]", "[^b]", "[a-b]", "[b-a]", "[!b-a]", "[]a]", "[-a]"]),
    min_size=1,
    max_size=8,
).map("".join)


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("[bz-a]", "b", "az-"),
        ("[!z-a]", "az-", ""),
        ("[a-]", "a-", "b"),
        ("[]a]", "a]", "b"),
        ("[!]a]", "b-", "a]"),
        ("[a&&b]", "a&b", "~"),
        ("[a||~~[]", "a|~[", "b"),
    ],
)
def test_sets_are_those_of_bash(pattern: str, fitting: str, others: str) -> None:
    matches = name_matcher(pattern)
    assert [each for each in fitting + others if matches(each)] == list(fitting)
    assert [each for each in fitting + others if _bash_matches(pattern, each)] == list(fitting)


@given(_patterns, _names)
@example("[ab]*[!a]*a", "abba")
def test_a_name_matches_as_in_bash(pattern: str, name: str) -> None:
    hidden = name.startswith(".") and not pattern.startswith(".")
    assert bool(name_matcher(pattern)(name)) == (_bash_matches(pattern, name) and not hidden)


@lru_cache(4096)
def _bash_matches(pattern: str, name: str) -> bool:
    script = "LC_ALL=C; [[ $2 == $1 ]]"
    return subprocess.run(["bash", "-c", script, "bash", pattern, name], check=False).returncode == 0


_parts = st.lists(st.sampled_from(["**", "*", "a", "b", "a*", "*b", "*a*b*"]), min_size=2, max_size=6)
_paths = st.lists(st.sampled_from(["a", "b", "ab", "aab", "ba"]), min_size=1, max_size=7)


@given(_parts, _paths)
@example(["**", "a", "**", "b"], ["a", "a", "b"])
@example(["a", "**"], ["a"])
def test_a_path_matches_name_by_name(parts: list[str], path: list[str]) -> None:
    assert path_matcher(["/".join(parts)])("/".join(path)) == _fits(tuple(parts), tuple(path))


def _fits(parts: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """The definition, without any thought of time."""
    if not parts:
        return not path
    if parts == ("**",):
        return bool(path)
    if parts[0] == "**":
        return any(_fits(parts[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and bool(name_matcher(parts[0])(path[0])) and _fits(parts[1:], path[1:])


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 60 + "b", "a" * 255),
        ("x/" + "*a" * 60 + "b", "x/" + "a" * 255),
        ("**/a/" * 30 + "b", "a/" * 500 + "c"),
        ("**/*a*a/" * 20 + "b", "aaaaaaaa/" * 200 + "c"),
        ("**/**/" * 40 + "b", "a/" * 500 + "c"),
        ("/" + "*" * 200 + "b", "/" + "a" * 255),
    ],
)
def test_no_pattern_takes_long(pattern: str, path: str) -> None:
    """Each took longer than a machine lives when `re` could take back what a star had taken."""
    matches = path_matcher([pattern])
    began = time.thread_time()
    assert not matches(path)
    assert time.thread_time() - began < 0.5
