"""Options of commands on images: here, or on a server."""

from typing import Annotated, TypedDict

import typer

from cove.cli.connection import Server

UrlOption = Annotated[
    str | None, typer.Option(envvar="COVE_URL", metavar="URL", help="The server that has the images; none by default.")
]


class Place(TypedDict):
    """The server as an argument, or none."""

    url: str | None
    api_key: str | None


async def place(url: str | None, api_key: str | None) -> Place:
    """Return where images are; a server that is not there is said so at once."""
    if url:
        await Server(url, api_key).check()
    return {"url": url, "api_key": api_key}
