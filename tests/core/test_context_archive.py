"""The directory of a build as an archive: what rules hide is not sent, what is read by whoever builds is."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cove.archive.stream import Stream
from cove.errors import ValidationFailed
from cove.images.context_archive import pack_context, read_bounded, shown_name


def packed(directory: Path, dockerfile: str = "Dockerfile", apart: bytes | None = None) -> dict[str, bytes | None]:
    """Files with their content, all else with None."""
    path = directory.parent / "packed.tar"
    with open(path, "wb") as file:
        pack_context(str(directory), dockerfile, apart, Stream(file.fileno()))
    with tarfile.open(path) as archive:
        found = {member.name: archive.extractfile(member) if member.isfile() else None for member in archive}
        return {name.removeprefix("./"): None if file is None else file.read() for name, file in found.items()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    top = tmp_path / "context"
    for path in ("Dockerfile", "a", "d/b", "d/keep", "deep/er/Recipe", "deep/other"):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(path)
    return top


def test_all_is_sent_unless_rules_say_otherwise(directory: Path) -> None:
    (directory / "link").symlink_to("/etc/passwd")
    os.mkfifo(directory / "pipe")
    found = packed(directory)
    assert found["link"] is None
    assert "pipe" not in found
    assert found["d/b"] == b"d/b"


@pytest.mark.parametrize(
    ("rules", "dockerfile", "files"),
    [
        ("*", "Dockerfile", {".dockerignore", "Dockerfile"}),
        ("*", "deep/er/Recipe", {".dockerignore", "deep/er/Recipe"}),
        ("d\n", "Dockerfile", {".dockerignore", "Dockerfile", "a", "deep/er/Recipe", "deep/other"}),
        ("*\n!d/keep\n", "Dockerfile", {".dockerignore", "Dockerfile", "d/keep"}),
    ],
)
def test_what_is_hidden_is_not_sent(directory: Path, rules: str, dockerfile: str, files: set[str]) -> None:
    (directory / ".dockerignore").write_text(rules)
    found = packed(directory, dockerfile)
    assert {name for name, content in found.items() if content is not None} == files


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_rules_that_are_no_file_hide_nothing(directory: Path, make: Callable[[Path], None]) -> None:
    make(directory / ".dockerignore")
    assert "a" in packed(directory)


def test_a_dockerfile_from_elsewhere_has_its_own_name(directory: Path) -> None:
    assert packed(directory, ".own", b"FROM x")[".own"] == b"FROM x"


def test_files_are_named_as_their_user_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_name(f"{tmp_path}/d/Recipe") == "d/Recipe"
    assert shown_name("/elsewhere/Recipe") == "/elsewhere/Recipe"
    assert shown_name("d/Recipe") == "d/Recipe"
    with pytest.raises(ValidationFailed, match="cannot read"):
        read_bounded(str(tmp_path), 1)
