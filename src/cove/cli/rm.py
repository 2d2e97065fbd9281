"""Remove things by id, as all subcommands called `rm` do.

The library and HTTP take what is gone for destroyed. Who types an id wants to be told of a wrong one, as `docker rm`
and `kubectl delete` tell it; `-f` is for scripts that only want it gone.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from cove.cli.descriptors import FAILURE, say
from cove.errors import NotFound

ForceOption = Annotated[bool, typer.Option("-f", "--force", help="What is not there is as good as removed.")]


async def remove_each(ids: list[str], remove: Callable[[str], Awaitable[None]], *, force: bool) -> int:
    """All that can be; the exit code tells of the others."""
    code = 0
    for id in ids:
        try:
            await remove(id)
        except NotFound as error:
            if not force:
                say(f"{error.message}; -f lets that pass")
                code = FAILURE
    return code
