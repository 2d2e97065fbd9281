"""Requests about API keys."""

from datetime import datetime

from cove.model import Quota
from cove.wire.requests.request import Request


class CreateKey(Request, frozen=True):
    """A key by that name; its tenant is called as the key, unless it is said."""

    name: str
    tenant: str | None = None
    is_admin: bool = False
    expires_at: datetime | None = None
    quota: Quota | None = None
