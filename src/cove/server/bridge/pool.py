"""Routes of the warm pool in the bridge protocol, `/v1/pool/...`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cove.errors import CoveError
from cove.http import Request, Response
from cove.local.threads import in_thread
from cove.model import SandboxSpec
from cove.server.bridge.protocol import answer_json, failed
from cove.server.configuration import Configuration
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.warm_pool import WarmPool

BELOW: Final = "/v1/pool/"


class BridgePool:
    """Looks at the pool and fills or empties it; the supervisor keeps it as configured."""

    def __init__(self, directory: Directory, configuration: Configuration) -> None:
        self._directory = directory
        self._configuration = configuration
        self._pool = WarmPool(directory)

    async def stats(self, _: Request) -> Response:
        """Count the sandboxes that are warm, and those in use."""
        with _translated():
            return answer_json(await in_thread(self._stats))

    async def prime(self, _: Request) -> Response:
        """Fill the pool."""
        with _translated():
            await in_thread(self._prime)
        return answer_json({"ok": True})

    async def shut_down(self, _: Request) -> Response:
        """Empty the pool."""
        with _translated():
            await in_thread(self._pool.drain)
        return answer_json({"ok": True})

    def _stats(self) -> dict[str, object]:
        warm = self._pool.count(self._spec())
        assigned = self._directory.count()
        most = self._configuration.max_sandboxes
        target = self._configuration.warm
        config = {"warmTarget": target, "refreshInterval": 0, "maxInstances": most, "scaleBatchSize": 1}
        return {
            "warm": warm,
            "assigned": assigned,
            "total": warm + assigned,
            "maxInstances": most,
            "config": config,
        }

    def _prime(self) -> None:
        for _ in range(self._configuration.warm - self._pool.count(self._spec())):
            self._pool.replenish(self._spec(), self._configuration.warm)

    def _spec(self) -> SandboxSpec:
        return self._configuration.admit(SandboxSpec())


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except CoveError as error:
        raise failed("pool_error", error.message) from None
