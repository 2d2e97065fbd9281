"""What is said to have changed is exactly what differs between two trees, however the layers say it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cove.core import layer_changes
from cove.core.layer_changes import Change, Comparison, Entry, EntryKind, Place
from cove.errors import LimitExceeded
from cove.model import FileChangeKind

pytestmark = pytest.mark.pure


@dataclass(frozen=True)
class Leaf:
    """A file, a link or something else; two of the same size may differ."""

    kind: EntryKind
    mode: int
    content: bytes

    @property
    def entry(self) -> Entry:
        return Entry(self.kind, self.mode, len(self.content))


@dataclass(frozen=True)
class Branch:
    mode: int
    below: "Mapping[bytes, Leaf | Branch]"
    opaque: bool = False


Node = Leaf | Branch
WHITEOUT = Leaf(EntryKind.WHITEOUT, 0, b"")

names = st.sampled_from([b"a", b"b", b"c", b"\xff"])
modes = st.sampled_from([0o644, 0o700])
leaves = st.builds(
    Leaf,
    st.sampled_from([EntryKind.FILE, EntryKind.SYMLINK, EntryKind.OTHER]),
    modes,
    st.sampled_from([b"", b"one", b"two"]),
).map(lambda leaf: Leaf(leaf.kind, leaf.mode, b"") if leaf.kind is EntryKind.OTHER else leaf)
nodes: st.SearchStrategy[Node] = st.recursive(
    leaves,
    lambda below: st.builds(Branch, modes, st.dictionaries(names, below, max_size=4)),
    max_leaves=12,
)
trees = st.builds(Branch, st.just(0o755), st.dictionaries(names, nodes, max_size=4))


class Memory:
    """A layer that is a tree in memory."""

    def __init__(self, top: Branch) -> None:
        self.top = top

    def at(self, path: bytes) -> Node:
        node: Node = self.top
        for name in path.split(b"/") if path else []:
            assert isinstance(node, Branch)
            node = node.below[name]
        return node

    def branch(self, path: bytes) -> Branch:
        node = self.at(path)
        assert isinstance(node, Branch)
        return node

    def read(self, directory: bytes) -> Mapping[bytes, Entry]:
        return {name: entry_of(node) for name, node in self.branch(directory).below.items()}

    def find(self, directory: bytes, name: bytes) -> Entry | None:
        return self.read(directory).get(name)

    def is_opaque(self, directory: bytes) -> bool:
        return self.branch(directory).opaque


def entry_of(node: Node) -> Entry:
    return Entry(EntryKind.DIRECTORY, node.mode) if isinstance(node, Branch) else node.entry


def same(path: bytes, before: Place, after: Place) -> bool:
    assert isinstance(before.owner, Memory)
    assert isinstance(after.owner, Memory)
    return before.owner.at(path) == after.owner.at(path)


def flat(node: Node, path: bytes = b"") -> dict[bytes, Entry | Leaf]:
    """Every path of a tree, with all that counts of it."""
    if isinstance(node, Leaf):
        return {path: node}
    found: dict[bytes, Entry | Leaf] = {path: entry_of(node)} if path else {}
    for name, below in node.below.items():
        found |= flat(below, path + b"/" + name if path else name)
    return found


def upper_of(old: Branch, new: Branch, draw: st.DataObject) -> Branch:
    """Return the layer that makes the new tree of the old one; what may be said in two ways, is said in either."""
    if draw.draw(st.booleans()):
        return Branch(new.mode, {name: replaced(node) for name, node in new.below.items()}, opaque=True)
    below: dict[bytes, Node] = dict.fromkeys(old.below.keys() - new.below.keys(), WHITEOUT)
    for name, node in new.below.items():
        was = old.below.get(name)
        if was == node and draw.draw(st.booleans()):
            continue
        if isinstance(node, Branch) and isinstance(was, Branch):
            below[name] = upper_of(was, node, draw)
        else:
            below[name] = replaced(node)
    if draw.draw(st.booleans()):
        below.setdefault(b"gone", WHITEOUT)
    return Branch(new.mode, below)


def replaced(node: Node) -> Node:
    """What stands in the place of something else hides all that was below it."""
    return Branch(node.mode, node.below, opaque=True) if isinstance(node, Branch) else node


def flags(change: Change) -> tuple[bytes, FileChangeKind]:
    return change.path, change.kind


@given(st.lists(trees, min_size=2, max_size=4), st.integers(0, 2), st.data())
def test_changes_are_the_true_difference_of_two_trees(states: list[Branch], base: int, draw: st.DataObject) -> None:
    base = min(base, len(states) - 2)
    layers = [Memory(states[0])]
    for old, new in pairwise(states):
        upper = upper_of(old, new, draw)
        layers.append(Memory(Branch(upper.mode, upper.below) if not upper.opaque else hide_all(old, upper)))
    found = Comparison(layers[: base + 1], layers[base + 1 :], same).run()
    before, after = flat(states[base]), flat(states[-1])
    expected = [
        (path, FileChangeKind.ADDED)
        if path not in before
        else (path, FileChangeKind.DELETED if path not in after else FileChangeKind.MODIFIED)
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    assert [flags(change) for change in found] == expected


def hide_all(old: Branch, upper: Branch) -> Branch:
    """The top of a layer is never opaque: it hides name by name."""
    hidden: dict[bytes, Node] = dict.fromkeys(old.below, WHITEOUT)
    return Branch(upper.mode, hidden | dict(upper.below))


def test_a_tree_on_nothing_is_all_added() -> None:
    layer = Memory(Branch(0o755, {b"a": Branch(0o755, {b"b": Leaf(EntryKind.FILE, 0o644, b"12")})}))
    found = Comparison([], [layer], same).run()
    described = [change.file_change("/workspace/") for change in found]
    assert [(each.path, each.kind.value, each.size) for each in described] == [
        ("/workspace/a", "added", 0),
        ("/workspace/a/b", "added", 2),
    ]


def test_the_size_of_what_is_gone_is_what_it_had() -> None:
    lower = Memory(Branch(0o755, {b"\xff": Leaf(EntryKind.FILE, 0o644, b"123")}))
    (change,) = Comparison([lower], [Memory(Branch(0o755, {b"\xff": WHITEOUT}))], same).run()
    described = change.file_change("/")
    assert (described.path, described.kind, described.size) == ("/\udcff", FileChangeKind.DELETED, 3)


def test_a_directory_in_the_place_of_a_file_hides_it_for_the_layers_above() -> None:
    file = Memory(Branch(0o755, {b"a": Leaf(EntryKind.FILE, 0o644, b"1")}))
    directory = Memory(Branch(0o755, {b"a": Branch(0o755, {b"b": Leaf(EntryKind.FILE, 0o644, b"2")})}))
    found = Comparison([file], [file, directory], same).run()
    assert [flags(change) for change in found] == [
        (b"a", FileChangeKind.MODIFIED),
        (b"a/b", FileChangeKind.ADDED),
    ]


def test_a_directory_is_merged_through_a_layer_that_has_nothing_of_it() -> None:
    def layer(name: bytes) -> Memory:
        return Memory(Branch(0o755, {b"a": Branch(0o755, {name: Leaf(EntryKind.FILE, 0o644, b"1")})}))

    empty = Memory(Branch(0o755, {}))
    found = Comparison([layer(b"x"), empty, layer(b"y")], [layer(b"y"), empty, layer(b"z")], same).run()
    assert [flags(change) for change in found] == [(b"a/z", FileChangeKind.ADDED)]


def test_changes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Memory(Branch(0o755, {b"%d" % number: Leaf(EntryKind.FILE, 0o644, b"") for number in range(5)}))
    monkeypatch.setattr(layer_changes, "MOST_CHANGES", 4)
    with pytest.raises(LimitExceeded, match="more than 4 files have changed"):
        Comparison([], [many], same).run()
    monkeypatch.setattr(layer_changes, "MOST_VISITED", 4)
    with pytest.raises(LimitExceeded, match="more than 4 files were touched"):
        Comparison([many], [many], same).run()
