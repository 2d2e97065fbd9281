"""Pin what `cove setup` installs: every package with its version and the hashes of its wheels, for each Python.

Run it to take up newer versions, look at the difference, run `cove setup --anew` and the tests of code contexts.
It asks whatever index pip is configured for.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cove.runtime.setup import PACKAGES

TARGET = Path(__file__).resolve().parent.parent / "src" / "cove" / "runtime" / "requirements"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
# From the newest C library that wheels are built for to the oldest.
_PLATFORMS = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
_HEAD = "# Made by scripts/make_requirements.py: what `cove setup` installs on Python {}.\n"


class Metadata(msgspec.Struct):
    """What a wheel says of itself."""

    name: str
    version: str
    requires_dist: list[str] = []


class Archive(msgspec.Struct):
    """A wheel."""

    hashes: dict[str, str]


class Download(msgspec.Struct):
    """Where it comes from."""

    archive_info: Archive


class Installed(msgspec.Struct):
    """One package of pip's report."""

    metadata: Metadata
    download_info: Download


class Report(msgspec.Struct):
    """What pip would install."""

    install: list[Installed]


def resolve(python: str, machine: str, wanted: list[str]) -> dict[str, Installed]:
    """What pip chooses for that Python on that machine, by name.

    pip judges markers by the Python that it runs on: what only the other one needs is asked for by name.
    """
    while True:
        report = ask_pip(python, machine, wanted)
        chosen = {str(canonicalize_name(each.metadata.name)): each for each in report}
        missing = [need for each in report for need in needs(each.metadata, python, machine) if need not in chosen]
        if not missing:
            return chosen
        wanted = [*wanted, *missing]


def ask_pip(python: str, machine: str, wanted: list[str]) -> list[Installed]:
    """What pip would install."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    command += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
    command += [word for platform in _PLATFORMS for word in ("--platform", f"{platform}_{machine}")]
    with tempfile.TemporaryDirectory() as target:
        done = subprocess.run([*command, "--target", target, *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"Python {python} on {machine}: {done.stderr.strip()}")
    return msgspec.json.decode(done.stdout, type=Report).install


def needs(metadata: Metadata, python: str, machine: str) -> list[str]:
    """The names of what it requires on that Python."""
    target = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine, "extra": ""}
    required = [Requirement(each) for each in metadata.requires_dist]
    return [canonicalize_name(each.name) for each in required if not each.marker or each.marker.evaluate(target)]


def requirements(python: str) -> str:
    """The file for one Python: the same versions on every machine."""
    first = resolve(python, MACHINES[0], list(PACKAGES))
    pins = {name: f"{name}=={each.metadata.version}" for name, each in first.items()}
    everywhere = [first, *(resolve(python, machine, list(pins.values())) for machine in MACHINES[1:])]
    lines = []
    for name, pin in sorted(pins.items()):
        hashes = sorted({chosen[name].download_info.archive_info.hashes["sha256"] for chosen in everywhere})
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in hashes)]))
    return _HEAD.format(python) + "\n".join(lines) + "\n"


def main() -> None:
    """Write the files."""
    TARGET.mkdir(exist_ok=True)
    for python in PYTHONS:
        (TARGET / f"python-{python}.txt").write_text(requirements(python), encoding="utf-8")
        print(f"Python {python}")


if __name__ == "__main__":
    main()
