"""Signatures: the parameters of an operation's method in `cove.api`, by how their arguments travel."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import msgspec

from cove.errors import ValidationFailed
from cove.wire.operation import AnyOperation, Form, parameters_of

_CONTENT = ("data", "chunks")


@dataclass(frozen=True, slots=True)
class Signature:
    """`in_path` are the arguments that stand in the path, with their types; `content` is the one that is the body."""

    method: Callable[..., object]
    positional: tuple[str, ...]
    required: frozenset[str]
    names: frozenset[str]
    in_path: Mapping[str, type]
    content: str

    def bind(self, arguments: Sequence[object], named: dict[str, object]) -> dict[str, object]:
        """All arguments by name, without defaults; TypeError as the method itself would raise it."""
        bound = {**dict(zip(self.positional, arguments, strict=False)), **named}
        is_exact = len(bound) == len(arguments) + len(named)
        if not is_exact or not self.required <= bound.keys() or not bound.keys() <= self.names:
            inspect.signature(self.method).bind(None, *arguments, **named)
        return bound

    def take_path(self, arguments: dict[str, object]) -> list[str]:
        """Take out of the arguments those that stand in the path, as its segments."""
        return [_write(name, kind, arguments.pop(name)) for name, kind in self.in_path.items()]

    def read_path(self, segments: Sequence[str]) -> dict[str, object]:
        """Give the arguments that stand in the path."""
        found = zip(self.in_path.items(), segments, strict=True)
        return {name: _read(name, kind, text) for (name, kind), text in found}


@cache
def signature_of(operation: AnyOperation) -> Signature:
    """The first parameters of the method take what stands in the path behind the ids of the method's owner."""
    if operation.form is Form.PAGE:  # documents are no part of `cove.api`
        return _NONE
    method = getattr(operation.target.kind, operation.method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    in_path = parameters[: len(parameters_of(operation.path)) - operation.target.ids]
    return Signature(
        method=method,
        positional=tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD),
        required=frozenset(each.name for each in parameters if each.default is each.empty),
        names=frozenset(each.name for each in parameters),
        in_path={each.name: each.annotation for each in in_path},
        content=next((each.name for each in parameters if each.name in _CONTENT), ""),
    )


def _write(name: str, kind: type, value: object) -> str:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValidationFailed(f"{name} must be {kind.__name__}, not {type(value).__name__}")
    return str(value)


def _read(name: str, kind: type, text: str) -> object:
    try:
        return msgspec.convert(text, kind, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise ValidationFailed(f"{name} must be {kind.__name__}, not {text!r}") from None


_NONE: Final = Signature(lambda _: None, (), frozenset(), frozenset(), {}, "")
