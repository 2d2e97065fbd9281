"""Write down what calls do to files: the operation and the paths, never contents."""

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Protocol, TypeVar

from cove.core.file_path import resolve_path
from cove.errors import CoveError
from cove.model import JournalKind
from cove.runtime.journal import Journal

T = TypeVar("T")

_MOST_PATH = 1024


class Journaled(Protocol):
    """An object whose calls change files."""

    @property
    def journal(self) -> Journal:
        """The journal of its sandbox."""

    def _base(self) -> str:
        """The directory that relative paths start from."""


def journaled(prefix: str = "", **methods: str) -> Callable[[T], T]:
    """Record these methods of a class; each value names the parameters that are its path and, if any, its target."""

    def decorate(kind: T) -> T:
        for name, parameters in methods.items():
            setattr(kind, name, _recorded(f"{prefix}{name}", getattr(kind, name), parameters.split()))
        return kind

    return decorate


def _recorded(
    operation: str, method: Callable[..., Awaitable[object]], parameters: list[str]
) -> Callable[..., Awaitable[object]]:
    order = list(inspect.signature(method).parameters)[1:]

    @wraps(method)
    async def call(self: Journaled, *arguments: object, **named: object) -> object:
        given = {**dict(zip(order, arguments, strict=False)), **named}
        with self.journal.call(JournalKind.FILES, operation=operation) as entry:
            for field, parameter in zip(("path", "target"), parameters, strict=False):
                entry.fields[field] = _resolved(self, given.get(parameter))  # type: ignore[literal-required]  # one of two
            entry.fields["size"] = _size(given)
            result = await method(self, *arguments, **named)
            if isinstance(result, int) and "chunks" in given:
                entry.fields["size"] = result
            return result

    return call


def _resolved(of: Journaled, path: object) -> str | None:
    if not isinstance(path, str):
        return None
    try:
        return os.fsdecode(resolve_path(of._base(), path))[:_MOST_PATH]
    except CoveError:
        return path[:_MOST_PATH]


def _size(given: Mapping[str, object]) -> int | None:
    data = given.get("data")
    return len(data) if isinstance(data, bytes | str) else None
