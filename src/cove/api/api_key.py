"""Interface of a server's API keys: who may use it, as which tenant, and how much of it."""

import builtins
from datetime import datetime

from cove.api.provider import provider_for
from cove.model import ApiKeyInfo, ApiKeyMade, Quota


class AsyncApiKey:
    """The keys of a server, for its admins; without a `url` those of this user's state directory."""

    @classmethod
    async def create(
        cls,
        name: str,
        *,
        tenant: str | None = None,
        is_admin: bool = False,
        expires_at: datetime | None = None,
        quota: Quota | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> ApiKeyMade:
        """Make a key, whose text is told this once. Its tenant is called as the key, unless it is said.

        Raises ApiKeyAlreadyExists.
        """
        return await provider_for(url, api_key).create_key(
            name, tenant=tenant, is_admin=is_admin, expires_at=expires_at, quota=quota
        )

    @classmethod
    async def list(cls, *, url: str | None = None, api_key: str | None = None) -> builtins.list[ApiKeyInfo]:
        """Describe all keys, oldest first."""
        return await provider_for(url, api_key).list_keys()

    @classmethod
    async def get(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> ApiKeyInfo:
        """Describe one key. Raises ApiKeyNotFound."""
        return await provider_for(url, api_key).get_key(name)

    @classmethod
    async def rotate(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> ApiKeyMade:
        """Replace a key by a new one with the same rights; the old one stops working at once."""
        return await provider_for(url, api_key).rotate_key(name)

    @classmethod
    async def delete(cls, name: str, *, url: str | None = None, api_key: str | None = None) -> None:
        """Revoke a key: it stops working at once, also in streams that are open. What it made stays its tenant's."""
        await provider_for(url, api_key).delete_key(name)
