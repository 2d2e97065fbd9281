"""Git in a sandbox on a server."""

from cove import api
from cove.client.calls import Calls
from cove.core.command import check_timeout
from cove.model import GitClone
from cove.wire import operations, requests


class Git(api.Git):
    """Repositories inside the sandbox."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def clone(
        self,
        url: str,
        path: str | None = None,
        *,
        branch: str | None = None,
        depth: int | None = None,
        timeout: float | None = None,
        token: str | None = None,
    ) -> GitClone:
        """See api.Git."""
        request = requests.CloneRepository(
            url=url, path=path, branch=branch, depth=depth, timeout=check_timeout(timeout), token=token
        )
        return await self._calls.get(operations.CLONE, GitClone, request=request)
