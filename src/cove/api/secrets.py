"""Define where the sandboxes of this program find their secrets."""

from collections.abc import Iterable, Mapping

from cove.errors import ValidationFailed
from cove.model.secret import SecretSource

_defined: dict[str, SecretSource] = {}


def define_secret(
    name: str, *, env: str | None = None, file: str | None = None, command: Iterable[str] | None = None
) -> None:
    """Say where the sandboxes of this program find a secret: in a variable, a file, or a command's output.

    One that is not defined is the environment variable of its name. A server's are defined by its configuration.
    """
    if sum(each is not None for each in (env, file, command)) != 1:
        raise ValidationFailed(f"secret {name}: say one of env, file and command")
    _defined[name] = SecretSource(env=env, file=file, command=None if command is None else tuple(command))


def defined_secrets() -> Mapping[str, SecretSource]:
    """Return those of this program."""
    return _defined
