"""Interface of what a sandbox gives to others: tokens for some of its operations, and URLs of its files."""

from abc import ABC, abstractmethod
from collections.abc import Sequence


class Shareable(ABC):
    """Things that others can be let in to, without a key."""

    @abstractmethod
    async def token(self, operations: Sequence[str], *, expires: float = 3600.0, path: str | None = None) -> str:
        """Make a key that reaches this sandbox alone, for some operations, until so many seconds are over.

        `["terminal", "files.read"]` names families, or what only reads of one; the names of single operations are
        in the reference of the HTTP API. With `path`, only that file is read or written. It ends with the sandbox,
        and makes no other tokens. PermissionDenied for a sandbox without a server.
        """

    @abstractmethod
    async def signed_url(self, path: str, *, write: bool = False, expires: float = 3600.0) -> str:
        """Make a URL that reads one file by GET, or with `write` replaces it by PUT, for whoever has it.

        PermissionDenied for a sandbox without a server.
        """
