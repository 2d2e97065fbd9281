"""A merged layer shows what the layers that it was made from show, wherever it takes their place."""

import os
import random
import stat
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cove.errors import LimitExceeded
from cove.layers import merging
from cove.layers.merging import merge_layers

Shown = dict[bytes, tuple[object, ...]]


def show(layers: Sequence[Path], path: bytes = b"") -> Shown:
    """What an overlay of these layers, bottom first, shows: written anew, for directories that can be read."""
    found: Shown = {}
    names: dict[bytes, list[Path]] = {}
    for layer in reversed(layers):
        directory = os.fsencode(layer) + b"/" + path
        for name in sorted(os.listdir(directory)):
            names.setdefault(name, []).append(layer)
    for name, having in names.items():
        full = path + b"/" + name if path else name
        at = [os.fsencode(layer) + b"/" + full for layer in having]
        top = os.lstat(at[0])
        if stat.S_ISCHR(top.st_mode):
            continue
        if not stat.S_ISDIR(top.st_mode):
            found[full] = fact(at[0], top)
            continue
        merged = []
        for layer, each in zip(having, at, strict=True):
            if not stat.S_ISDIR(os.lstat(each).st_mode):
                break
            merged.append(layer)
            if is_opaque(each):
                break
        found[full] = ("directory", stat.S_IMODE(top.st_mode), top.st_mtime_ns, attributes(at[0]))
        found |= show(merged[::-1], full)
    return found


def fact(path: bytes, found: os.stat_result) -> tuple[object, ...]:
    kind = stat.S_IFMT(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return kind, os.readlink(path), found.st_mtime_ns
    if stat.S_ISREG(found.st_mode):
        content = Path(os.fsdecode(path)).read_bytes()
        return kind, stat.S_IMODE(found.st_mode), found.st_mtime_ns, content, attributes(path)
    return kind, stat.S_IMODE(found.st_mode), found.st_mtime_ns


def attributes(path: bytes) -> Mapping[str, bytes]:
    names = [name for name in os.listxattr(path) if name.startswith("user.") and "overlay" not in name]
    return {name: os.getxattr(path, name) for name in names}


def is_opaque(path: bytes) -> bool:
    return "user.overlay.opaque" in os.listxattr(path)


def fill(chance: random.Random, directory: Path, depth: int = 0) -> None:
    """Make whatever a layer can have, under few names."""
    for name in chance.sample("abcdef", chance.randint(0, 5)):
        path = directory / name
        match chance.choice(("file", "directory", "directory", "opaque", "link", "whiteout", "pipe", "hard")):
            case "directory" | "opaque" as kind if depth < 3:
                path.mkdir()
                fill(chance, path, depth + 1)
                if kind == "opaque":
                    os.setxattr(path, "user.overlay.opaque", b"y")
                os.setxattr(path, "user.mine", chance.randbytes(3))
                path.chmod(chance.choice((0o755, 0o700, 0o1777)))
                os.utime(path, ns=(1, chance.randrange(10**18)))
            case "link":
                path.symlink_to(chance.choice(("/etc/passwd", "a", "../b")))
            case "whiteout":
                os.mknod(path, stat.S_IFCHR, 0)
            case "pipe":
                os.mkfifo(path, 0o640)
            case kind:
                path.write_bytes(chance.randbytes(chance.randrange(20)))
                os.setxattr(path, "user.mine", chance.randbytes(3))
                path.chmod(chance.choice((0o644, 0o600, 0o4755)))
                os.utime(path, ns=(1, chance.randrange(10**18)))
                if kind == "hard" and not (directory / f"{name}2").exists():
                    os.link(path, directory / f"{name}2")


@pytest.mark.parametrize("seed", range(60))
def test_a_run_can_be_replaced_anywhere_in_a_chain(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    layers = [tmp_path / str(number) for number in range(6)]
    for layer in layers:
        (layer / "workspace").mkdir(parents=True)
        fill(chance, layer / "workspace")
    begin = chance.randrange(0, 4)
    end = chance.randrange(begin + 2, 7)
    merged = tmp_path / "merged"
    merged.mkdir()
    merge_layers(layers[begin:end], merged, is_bottom=not begin)
    assert show([*layers[:begin], merged, *layers[end:]]) == show(layers)


def test_hard_links_holes_and_closed_directories_stay(tmp_path: Path) -> None:
    lower, upper, merged = (tmp_path / name for name in ("lower", "upper", "merged"))
    for layer in (lower, upper):
        (layer / "tmp" / "shut").mkdir(parents=True)
        merged.mkdir(exist_ok=True)
    (lower / "tmp/shut/file").write_text("hidden")
    (lower / "tmp/shut/file").chmod(0)
    with open(lower / "tmp/sparse", "wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 20)
        file.write(b"data")
    os.link(lower / "tmp/sparse", lower / "tmp/twin")
    (upper / "tmp/shut").chmod(0)
    (lower / "tmp/shut").chmod(0)
    try:
        merge_layers([lower, upper], merged, is_bottom=True)
        assert stat.S_IMODE((merged / "tmp/shut").stat().st_mode) == 0
        (merged / "tmp/shut").chmod(0o700)
        assert stat.S_IMODE((merged / "tmp/shut/file").stat().st_mode) == 0
        (merged / "tmp/shut/file").chmod(0o600)
        assert (merged / "tmp/shut/file").read_text() == "hidden"
        found = (merged / "tmp/sparse").stat()
        assert (found.st_nlink, found.st_size, found.st_blocks < 1000) == (2, 1 << 30, True)
        assert (merged / "tmp/twin").stat().st_ino == found.st_ino
    finally:
        for layer in (lower, upper, merged):
            (layer / "tmp/shut").chmod(0o700)


def test_access_lists_stay(tmp_path: Path) -> None:
    entries = [(1, 6, -1), (2, 4, os.geteuid()), (4, 0, -1), (16, 4, -1), (32, 0, -1)]
    rights = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    layer, merged = tmp_path / "layer", tmp_path / "merged"
    (layer / "tmp").mkdir(parents=True)
    merged.mkdir()
    (layer / "tmp/f").touch()
    try:
        os.setxattr(layer / "tmp/f", "system.posix_acl_access", rights)
    except OSError:
        pytest.skip("this disk has no access lists")
    merge_layers([layer, layer], merged, is_bottom=True)
    assert os.getxattr(merged / "tmp/f", "system.posix_acl_access") == rights
    assert (merged / "tmp/f").stat().st_mode == (layer / "tmp/f").stat().st_mode


def test_a_link_is_copied_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    lower, upper, merged = (tmp_path / name for name in ("lower", "upper", "merged"))
    for layer in (lower, upper, merged):
        layer.mkdir()
    (lower / "tmp").mkdir()
    (lower / "tmp/d").mkdir()
    (lower / "tmp/d/secret").write_text("own")
    (upper / "tmp").mkdir()
    (upper / "tmp/d").symlink_to(tmp_path)
    merge_layers([lower, upper], merged, is_bottom=True)
    assert os.readlink(merged / "tmp/d") == str(tmp_path)
    assert os.listdir(merged / "tmp") == ["d"]


def test_what_is_too_large_or_too_deep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, merged = tmp_path / "layer", tmp_path / "merged"
    (layer / "tmp").mkdir(parents=True)
    merged.mkdir()
    deep = layer / "tmp"
    for _ in range(202):
        deep /= "d"
        deep.mkdir()
    with pytest.raises(LimitExceeded):
        merge_layers([layer, layer], merged, is_bottom=True)
    monkeypatch.setattr(merging, "MOST_ENTRIES", 20)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(LimitExceeded):
        merge_layers([layer, layer], other, is_bottom=True)


def test_a_directory_is_not_read_beyond_the_limit_of_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, checks = [tmp_path / "a", tmp_path / "b"], list[None]()
    for layer in layers:
        (layer / "tmp").mkdir(parents=True)
        for number in range(15):
            (layer / "tmp" / str(number)).touch()
    monkeypatch.setattr(merging, "MOST_ENTRIES", 16)
    for name in ("same", "more"):
        (tmp_path / name).mkdir()
    merge_layers(layers, tmp_path / "same", is_bottom=True)  # one name counts once
    assert len(list((tmp_path / "same" / "tmp").iterdir())) == 15
    (layers[0] / "tmp" / "one").touch()
    with pytest.raises(LimitExceeded):
        merge_layers(layers, tmp_path / "more", is_bottom=True, check=lambda: checks.append(None))
    assert len(checks) == 1  # of `tmp` alone
