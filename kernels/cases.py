"""The kernels that are booted, and how each machine is set up."""

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a distribution: where its kernel comes from, and the user space that it boots with.

    Cove needs Python 3.11: a release whose own is older boots with the user space of a newer one.
    """

    name: str
    distribution: str
    suite: str
    package: str
    user_space: str


@dataclass(frozen=True, slots=True)
class Case:
    """One machine: a kernel, the sysctls that its administrator has set, and a profile of AppArmor that is loaded.

    Where `is_refused`, the machine allows no user namespaces: every sandbox has to be refused, with the reason.
    """

    release: Release
    note: str = ""
    sysctls: dict[str, str] = field(default_factory=dict)
    profile: str | None = None
    is_refused: bool = False

    @property
    def name(self) -> str:
        """Name it as the table does."""
        return f"{self.release.name}, {self.note}" if self.note else self.release.name

    @property
    def slug(self) -> str:
        """Name it as files do."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


DEBIAN_11 = Release("Debian 11", "debian", "bullseye", "linux-image-amd64", "bookworm")
DEBIAN_12 = Release("Debian 12", "debian", "bookworm", "linux-image-amd64", "bookworm")
DEBIAN_13 = Release("Debian 13", "debian", "trixie", "linux-image-amd64", "trixie")
BACKPORTS = Release("Debian 13 backports", "debian", "trixie-backports", "linux-image-amd64", "trixie")
UBUNTU_22 = Release("Ubuntu 22.04", "ubuntu", "jammy", "linux-image-generic", "bookworm")
UBUNTU_24 = Release("Ubuntu 24.04", "ubuntu", "noble", "linux-image-generic", "trixie")

_RESTRICTED = {"kernel.apparmor_restrict_unprivileged_userns": "1"}

CASES = (
    Case(DEBIAN_11),
    Case(DEBIAN_12),
    Case(
        DEBIAN_12,
        "`kernel.unprivileged_userns_clone=0`",
        sysctls={"kernel.unprivileged_userns_clone": "0"},
        is_refused=True,
    ),
    Case(DEBIAN_13),
    Case(DEBIAN_13, "`user.max_user_namespaces=0`", sysctls={"user.max_user_namespaces": "0"}, is_refused=True),
    Case(DEBIAN_13, "AppArmor denies bwrap user namespaces", profile="bwrap-denied", is_refused=True),
    Case(BACKPORTS),
    Case(UBUNTU_22),
    Case(UBUNTU_24, "with a profile for bwrap", sysctls=_RESTRICTED, profile="bwrap-allowed"),
    Case(UBUNTU_24, "without a profile for bwrap", sysctls=_RESTRICTED, is_refused=True),
)
