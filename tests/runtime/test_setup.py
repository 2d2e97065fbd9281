"""What `cove setup` installs: pinned, and refused when it is something else."""

import hashlib
import re
import sys
import venv
from pathlib import Path

import pytest
from test_code_packages import wheel

from cove.errors import InterpreterNotReady
from cove.runtime.setup import _REQUIREMENTS, PACKAGES, _install, find_requirements

FILES = sorted(_REQUIREMENTS.glob("python-*.txt"))
PINNED = re.compile(r"[a-z0-9-]+==[0-9a-z.]+( --hash=sha256:[0-9a-f]{64})+")


@pytest.mark.pure
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_package_is_pinned_with_hashes_and_nothing_names_a_place(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").replace(" \\\n    ", " ").splitlines()
    assert lines[0].startswith("#")
    assert all(PINNED.fullmatch(line) for line in lines[1:])
    assert {line.partition("==")[0] for line in lines[1:]} >= set(PACKAGES)


@pytest.mark.pure
def test_every_python_that_cove_supports_has_its_file_and_others_are_refused() -> None:
    assert [find_requirements((3, minor)) for minor in range(11, 15)] == FILES
    with pytest.raises(InterpreterNotReady, match="COVE_PYTHON"):
        find_requirements((3, 99))


def test_a_wheel_with_another_hash_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, wheels = tmp_path / "environment", tmp_path / "wheels"
    venv.create(environment, with_pip=True)
    wheels.mkdir()
    content = wheel("1.0", "text")
    (wheels / "parcel-1.0-py3-none-any.whl").write_bytes(content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    requirements = tmp_path / "requirements.txt"
    installed = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "parcel.py"
    for pin in ("parcel==1.0", f"parcel==1.0 --hash=sha256:{'0' * 64}"):
        requirements.write_text(pin, encoding="utf-8")
        with pytest.raises(InterpreterNotReady, match=r"(?i)hash"):
            _install(environment, requirements)
        assert not installed.exists()
    requirements.write_text(f"parcel==1.0 --hash=sha256:{hashlib.sha256(content).hexdigest()}", encoding="utf-8")
    _install(environment, requirements)
    assert installed.exists()
