"""Requests for whole sandboxes."""

from typing import Any, Self

from cove.core.identifier import check_sandbox_id
from cove.model import SandboxSpec
from cove.wire.requests.request import Environment, Request


class CreateSandbox(Request, frozen=True):
    """Without an id one is made. With `exist_ok` a sandbox that has the id already is given back as it is."""

    id: str | None = None
    spec: SandboxSpec = SandboxSpec()
    exist_ok: bool = False

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        id = arguments["id"]
        return super().of(**{**arguments, "id": None if id is None else check_sandbox_id(id)})

    @property
    def makes_new(self) -> bool:
        return not self.exist_ok or self.id is None


class SetEnv(Request, frozen=True):
    """Variables to export; None unsets."""

    env: Environment
