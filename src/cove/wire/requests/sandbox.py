"""Requests for whole sandboxes."""

from typing import Any, Self

import msgspec

from cove.core.identifier import check_sandbox_id
from cove.model import IdleAction, SandboxSpec, SandboxStatus, Selection
from cove.wire.coding import decode_json
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


class MakeToken(Request, frozen=True):
    """The operations that a token is for, and how long it holds."""

    operations: list[str]
    expires: float = 3600.0
    path: str | None = None


class SetEnv(Request, frozen=True):
    """Variables to export; None unsets."""

    env: Environment


class ListSandboxes(Request, frozen=True):
    """Those that have all of `labels`, which are a JSON object in the query, and this status."""

    labels: str | None = None
    status: SandboxStatus | None = None

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        labels = arguments.get("labels")
        if labels:
            wanted = Selection.of(labels, arguments.get("status"))
            arguments["labels"] = msgspec.json.encode(wanted.labels).decode()
        else:
            arguments["labels"] = None
        return super().of(**arguments)

    def arguments(self) -> dict[str, object]:
        labels = (
            {} if self.labels is None else decode_json(self.labels.encode(), dict[str, str], "`labels` in the query")
        )
        return {"labels": labels, "status": self.status}


class Pause(Request, frozen=True):
    """With `wake` the next call resumes the sandbox."""

    wake: bool = True


class MoveSandbox(Request, frozen=True):
    """The node to move to; None is that with most room."""

    node: str | None = None


class SetLifetime(Request, frozen=True):
    """Seconds from now; None is for ever."""

    seconds: float | None


class SetIdleTimeout(Request, frozen=True):
    """Seconds without use, and what is done then; None is never."""

    seconds: float | None
    action: IdleAction = IdleAction.STOP


class ReadJournal(Request, frozen=True):
    """From which cursor on; with `follow`, what comes later too."""

    since: str | None = None
    follow: bool = False


class ReadKeptJournal(Request, frozen=True):
    """From which cursor on."""

    since: str | None = None


class SetLabels(Request, frozen=True):
    """All labels that it has from here on."""

    labels: dict[str, str]
