"""Sources of secrets, the hosts they may be sent to, and the part of a request that may hold them."""

from typing import Final

import msgspec

# Where servers look for credentials, and keep nothing that another account could read.
USUAL_HEADERS: Final = ("Authorization", "X-Api-Key", "Api-Key", "Private-Token")


class SecretSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of a variable of the server's environment, a file, or a command that prints it.

    `hosts` are the names that it may be sent to: exact ones. None, in a program of your own: wherever a rule says.
    `headers` and `query` are the headers and the fields of the query that a client's rule may put it into. Without
    both, on a server, these are the headers that credentials usually have. Basic authentication is `Authorization`.
    """

    env: str | None = None
    file: str | None = None
    command: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    headers: tuple[str, ...] | None = None
    query: tuple[str, ...] | None = None

    def may_be_header(self, name: str) -> bool:
        """Return whether a client's rule may put it into that header."""
        usual = USUAL_HEADERS if self.query is None else ()
        names = usual if self.headers is None else self.headers
        return name.lower() in {each.lower() for each in names}

    def may_be_query(self, name: str) -> bool:
        """Return whether a client's rule may put it into that field of the query."""
        return name in (self.query or ())
