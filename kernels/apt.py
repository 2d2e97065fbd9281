"""Fetch packages of any release, from the mirrors that this machine's apt is configured for.

The lists are kept in a directory of our own: the machine's apt is read and never changed.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_FORMAT = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
_KEYRING = "/usr/share/keyrings/{}-archive-keyring.gpg"
_SECURITY = "Debian-Security"


class NotObtainable(Exception):
    """No mirror that this machine knows has it."""


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Where packages come from: for each distribution its archive, and what it has for security."""

    archives: dict[str, str]
    security: dict[str, str]


def find_mirrors(more: dict[str, str]) -> Mirrors:
    """Ask apt for the mirrors that it is configured for; `more` names others, by distribution."""
    listed = _run(["apt-get", "indextargets", "--format", _FORMAT, "Created-By: Packages"])
    archives: dict[str, str] = {}
    security: dict[str, str] = {}
    for line in listed.splitlines():
        origin, label, address = line.split("|")
        (security if label == _SECURITY else archives).setdefault(origin.lower(), address)
    return Mirrors({**archives, **more}, security)


def sources(mirrors: Mirrors, distribution: str, suite: str) -> list[str]:
    """Return the lines of sources.list(5) for one suite and its updates."""
    archive = mirrors.archives.get(distribution)
    if archive is None:
        raise NotObtainable(f"apt is configured for no mirror of {distribution.capitalize()}")
    keyring = _KEYRING.format(distribution)
    if not os.path.exists(keyring):
        raise NotObtainable(f"{keyring} is missing")
    main = f"deb [signed-by={keyring}] {archive}"
    base = suite.removesuffix("-backports")
    if distribution == "ubuntu":
        return [f"{main} {suite}{pocket} main" for pocket in ("", "-updates", "-security")]
    lines = [f"{main} {base} main"]
    if distribution in mirrors.security:
        lines.append(f"deb [signed-by={keyring}] {mirrors.security[distribution]} {base}-security main")
    return [*lines, f"{main} {suite} main"] if suite != base else lines


class Apt:
    """The packages of one suite."""

    def __init__(self, directory: Path, lines: list[str], suite: str) -> None:
        self._directory = directory
        self._suite = suite
        for name in ("lists/partial", "cache/archives/partial", "parts"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "sources.list").write_text("".join(f"{line}\n" for line in lines))
        (directory / "status").touch()
        self._options = [
            *self._option("Dir::State", directory),
            *self._option("Dir::State::status", directory / "status"),
            *self._option("Dir::Cache", directory / "cache"),
            *self._option("Dir::Etc::sourcelist", directory / "sources.list"),
            *self._option("Dir::Etc::sourceparts", directory / "parts"),
            *self._option("Dir::Etc::preferencesparts", directory / "parts"),
            *self._option("Acquire::Languages", "none"),
            *self._option("APT::Sandbox::User", "root"),
            *self._option("APT::Architecture", "amd64"),
        ]

    @staticmethod
    def _option(name: str, value: object) -> list[str]:
        return ["-o", f"{name}={value}"]

    def update(self) -> None:
        """Fetch the lists."""
        try:
            _run(["apt-get", *self._options, "update", "--quiet", "--error-on=any"])
        except subprocess.CalledProcessError as error:
            raise NotObtainable(f"the mirror does not have {self._suite}: {error.stderr.strip()[-200:]}") from error

    def depends(self, package: str) -> list[str]:
        """Return what installing a package would bring, itself included."""
        command = ["apt-get", *self._options, "install", "--simulate", "--no-install-recommends"]
        pinned = ["--target-release", self._suite] if self._suite.endswith("-backports") else []
        listed = _run([*command, *pinned, package])
        return [line.split()[1] for line in listed.splitlines() if line.startswith("Inst ")]

    def download(self, packages: list[str], target: Path) -> list[Path]:
        """Fetch packages that are not there yet; return their files."""
        target.mkdir(parents=True, exist_ok=True)
        found: list[Path] = []
        for package in packages:
            if not list(target.glob(f"{package}_*.deb")):
                _run(["apt-get", *self._options, "download", "--quiet", package], directory=target)
            found += target.glob(f"{package}_*.deb")
        return found


def _run(command: list[str], directory: Path | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=directory).stdout
