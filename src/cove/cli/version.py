"""`cove version`: print the version of Cove, and what it runs on."""

import json
import platform
from typing import Annotated

import typer

from cove import __version__


def version(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False) -> None:
    """Print the version."""
    facts = {"cove": __version__, "python": platform.python_version(), "kernel": platform.release()}
    print(json.dumps(facts) if as_json else f"cove {__version__}")
