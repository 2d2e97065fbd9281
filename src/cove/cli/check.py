"""Check of `cove doctor`: what was found, and what to do about it."""

import os
from enum import StrEnum

import msgspec


class Status(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at; `advice` says what to do when it is not ok."""

    name: str
    status: Status
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Check:
    """Make a check that found nothing missing."""
    return Check(name=name, status=Status.OK, found=found)


def warning(name: str, found: str, advice: str) -> Check:
    """Make a check after which Cove works, with less."""
    return Check(name=name, status=Status.WARNING, found=found, advice=advice)


def missing(name: str, found: str, advice: str) -> Check:
    """Make a check after which Cove does not work."""
    return Check(name=name, status=Status.MISSING, found=found, advice=advice)


def is_root() -> bool:
    """Return whether sandboxes have users of their own."""
    return os.geteuid() == 0


def install(package: str) -> str:
    """Return the command that installs a package, named as Debian and Ubuntu name it."""
    return f"`sudo apt install {package}` (Debian, Ubuntu; other systems have it too)."
