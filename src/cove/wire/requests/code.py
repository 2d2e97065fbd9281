"""Requests for code and its contexts."""

from typing import Self

from cove import api
from cove.wire.requests.request import Environment, Request, Seconds


class CreateCodeContext(Request, frozen=True):
    """`timeout` is the default for its runs."""

    language: str = "python"
    id: str | None = None
    cwd: str | None = None
    env: Environment | None = None
    timeout: Seconds = None
    user: str | None = None


class RunInContext(Request, frozen=True):
    """Code for a context."""

    code: str
    timeout: Seconds = None


class ForkContext(Request, frozen=True):
    """The number of copies; `force`: whatever threads the context has."""

    count: int = 1
    force: bool = False


class RunCode(Request, frozen=True):
    """Code for a context or, without one, for a clean executor."""

    code: str
    context: str | None = None
    language: str = "python"
    timeout: Seconds = None

    @classmethod
    def of(cls, **arguments: object) -> Self:
        if isinstance(context := arguments.get("context"), api.CodeContext):
            arguments["context"] = context.id
        return super().of(**arguments)
