"""The request of an operation: the arguments of one call, checked and written for the wire."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from cove.core.command import check_environment, check_timeout
from cove.errors import ValidationFailed

Environment = dict[str, str | None]
Command = str | list[str]
Seconds = float | None


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The arguments of one call: made `of` them by a client, and given back as `arguments` by a server."""

    @classmethod
    def of(cls, **arguments: object) -> Self:
        """Make the request of a call with these arguments; ValidationFailed for what cannot travel."""
        for name in arguments.keys() & _CHECKS.keys():
            arguments[name] = _CHECKS[name](arguments[name])
        try:
            return msgspec.convert(arguments, cls)
        except msgspec.ValidationError as error:
            raise ValidationFailed(str(error)) from None

    def arguments(self) -> dict[str, object]:
        """Return the fields as keyword arguments of the method that is called."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @property
    def makes_new(self) -> bool:
        """Return whether what the call makes is its caller's alone: others may use what was there before."""
        return True


def _environment(env: Mapping[str, str | None] | None) -> Environment | None:
    return None if env is None else {**check_environment(env)}


def _words(command: object) -> object:
    if command is None or isinstance(command, str):
        return command
    if not isinstance(command, Sequence) or isinstance(command, bytes):
        raise ValidationFailed(f"command must be a string or a list of strings, not {type(command).__name__}")
    return list(command)


def _grace(seconds: float) -> float:
    checked = check_timeout(seconds)
    if checked is None:
        raise ValidationFailed("grace must be a number of seconds")
    return checked


def _texts(texts: object) -> object:
    if texts is None:
        return None
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ValidationFailed(f"a list of strings is needed, not {texts!r}")
    return list(texts)


# How an argument of that name is written, whichever call has it.
_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "command": _words,
    "shell": _words,
    "env": _environment,
    "timeout": check_timeout,
    "grace": _grace,
    "paths": _texts,
    "include": _texts,
    "exclude": _texts,
}


class Nothing(Request, frozen=True):
    """No arguments but those in the path."""


class Waiting(Request, frozen=True):
    """A request that only waits: the timeout ends the wait, and nothing else."""

    timeout: Seconds = None
