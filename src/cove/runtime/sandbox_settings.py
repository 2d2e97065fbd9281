"""Change the environment, network and mounts of a sandbox: what holds now, beside the spec of its creation."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Literal

import msgspec

from cove.core.command import check_environment, merge_environment
from cove.errors import ValidationFailed
from cove.model import AnyMount, JournalKind, Network, NetworkEvent, NetworkPolicy, SandboxSpec, make_spec
from cove.runtime.gate import gated_call, gated_stream
from cove.runtime.network import SandboxNetwork
from cove.runtime.sandbox_life import SandboxLife


class SandboxSettings(SandboxLife):
    """`env_changes` is what was set since the creation; `_env` is what commands get, with all of that in it."""

    network: SandboxNetwork
    env_changes: dict[str, str | None]
    _env: Mapping[str, str]

    @abstractmethod
    def _check_running(self) -> None:
        """Raise what a call is told that cannot be made."""

    @gated_call
    async def set_env(self, env: Mapping[str, str | None]) -> None:
        checked = check_environment(env)
        self._env = merge_environment(self._env, checked)
        self.env_changes |= checked
        await self.life.keeper.keep()
        self.life.journal.record(JournalKind.SETTINGS, operation="env", target=" ".join(checked)[:1024])

    @gated_call
    async def set_network(self, network: Network | NetworkPolicy | Literal["none", "internet"]) -> None:
        self._check_running()
        spec = make_spec(self._spec, {"network": network})
        if spec.network != self._spec.network and Network.HOST in (spec.network, self._spec.network):
            raise ValidationFailed("a sandbox has the host's network from its creation to its end, or never")

        async def keep(brought: Mapping[str, str]) -> None:
            await self._keep(msgspec.structs.replace(self._spec, network=spec.network))
            self._env = merge_environment(self._env, brought)

        await self.network.change(spec.network, lambda: self._env, keep)
        self.life.journal.record(JournalKind.SETTINGS, operation="network")

    async def begin_network(self) -> None:
        """Let the policy of the spec hold: of a jail that has just started, or of a spec that was adopted."""
        self._env = merge_environment(self._env, await self.network.begin(self._spec.network, self._env))

    @gated_stream
    async def network_log(
        self, *, since: str | None = None, follow: bool = False
    ) -> AsyncGenerator[NetworkEvent, None]:
        self._check_running()
        async with aclosing(self.network.events(since, follow)) as events:
            async for event in events:
                yield event

    async def _set_mounts(self, mounts: Sequence[AnyMount]) -> None:
        await self._keep(msgspec.structs.replace(self._spec, mounts=tuple(mounts)))

    async def _keep(self, spec: SandboxSpec) -> None:
        """Let a spec hold, if that can be written down."""
        before, self._spec = self._spec, spec
        try:
            await self.life.keeper.keep()
        except BaseException:
            self._spec = before
            raise
