"""Sources of secrets, and the hosts they may be sent to."""

import msgspec


class SecretSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of a variable of the server's environment, a file, or a command that prints it.

    `hosts` are the names that it may be sent to: exact ones. None, in a program of your own: wherever a rule says.
    """

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
