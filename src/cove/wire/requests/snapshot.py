"""Requests about snapshots, and the way back to them."""

from typing import Any, Self

from cove.wire.requests.request import Request


class MakeSnapshot(Request, frozen=True):
    """A name and labels, if it is to have any."""

    name: str | None = None
    labels: dict[str, str] | None = None


class Since(Request, frozen=True):
    """Compare with that snapshot; without one, with the files at creation."""

    since: str | None = None

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        """Take a snapshot, or its id."""
        return super().of(**{name: _id(value) if name == "since" else value for name, value in arguments.items()})


class DiffSince(Since, frozen=True):
    """Compare only what is at or below a path."""

    path: str | None = None


class Restore(Request, frozen=True):
    """The snapshot to go back to."""

    snapshot: str

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        """Take a snapshot, or its id."""
        return super().of(snapshot=_id(arguments["snapshot"]))


class Fork(Request, frozen=True):
    """The number of copies."""

    count: int = 1


class Lease(Request, frozen=True):
    """The seconds after which a transaction that nobody renews is rolled back."""

    lease: float = 30.0


def _id(snapshot: object) -> object:
    return getattr(snapshot, "id", snapshot)
