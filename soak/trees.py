"""Files whose contents are known, as a whole: what a snapshot has, and what is there after a change that failed."""

from collections.abc import Mapping

from soak.possible import Possible, Violation

Tree = dict[str, Possible[bytes | None]]
Found = Mapping[str, bytes | None]


def copy_tree(tree: Tree) -> Tree:
    """The same possibilities, to remember."""
    return {name: file.copy() for name, file in tree.items()}


def fits(tree: Tree, found: Found) -> bool:
    """Whether every file is one that it can be."""
    return found.keys() == tree.keys() and all(content in tree[name].values for name, content in found.items())


def mixture(*trees: Tree) -> Tree:
    """Each file as in any of them, or missing."""
    names = {name for tree in trees for name in tree}
    return {
        name: Possible[bytes | None](None, *(value for tree in trees for value in tree[name].values))
        for name in sorted(names)
    }


def observe(tree: Tree, found: Found, subject: str) -> None:
    """All files were looked at."""
    for name, file in tree.items():
        file.observe(found[name], f"{name} in {subject}")


def settle(found: Found, subject: str, *states: Tree) -> Tree:
    """A change was not answered: what is there is one of these states, whole, never a part of each."""
    if not any(fits(state, found) for state in states):
        raise Violation(f"{subject} has files of no one state: {_differences(found, states)}")
    return {name: Possible[bytes | None](content) for name, content in found.items()}


def _differences(found: Found, states: "tuple[Tree, ...]") -> str:
    wrong = [[name for name, content in found.items() if content not in state[name].values] for state in states]
    return " / ".join(f"{names} {[_short(found[name]) for name in names]}" for names in wrong)


def _short(content: bytes | None) -> str:
    return "none" if content is None else f"{content[:12]!r} ({len(content)} bytes)"
