"""An exposed port of a sandbox."""

import msgspec


class ExposedPort(msgspec.Struct, frozen=True, kw_only=True):
    """An exposed port: whoever knows `url` reaches it. `path_url` leads there too, without a host name of its own.

    Not every resolver knows names below `localhost`: programs take `path_url` then, and browsers always `url`.
    """

    port: int
    url: str
    path_url: str
    token: str
    name: str | None = None
