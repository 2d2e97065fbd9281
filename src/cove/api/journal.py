"""Interface of journals: what was done to a sandbox and in it, also of one that is gone."""

import builtins
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from cove.api.provider import provider_for
from cove.model import DestroyedSandbox, JournalEvent


class Journaled(ABC):
    """Things that have a journal."""

    @abstractmethod
    def journal(self, *, since: str | None = None, follow: bool = False) -> AsyncGenerator[JournalEvent, None]:
        """Read what was done to it and in it, by whom and how it ended, from the cursor of an event on.

        With `follow`, what comes later too, until it is destroyed. It is there also while the sandbox is stopped, and
        reading it wakes nothing. What is no longer kept, or was lost, is a gap.
        """

    @classmethod
    async def list_destroyed(
        cls, *, url: str | None = None, api_key: str | None = None
    ) -> builtins.list[DestroyedSandbox]:
        """The destroyed sandboxes of a server whose journals are still kept, oldest first."""
        return await provider_for(url, api_key).list_destroyed()

    @classmethod
    def destroyed_journal(
        cls, key: str, *, since: str | None = None, url: str | None = None, api_key: str | None = None
    ) -> AsyncGenerator[JournalEvent, None]:
        """Read the journal of a destroyed sandbox, by the key that `list_destroyed` gives it."""
        return provider_for(url, api_key).destroyed_journal(key, since=since)
