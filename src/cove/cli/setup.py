"""`cove setup`: install what code contexts run on, once."""

import os
from typing import Annotated

import typer

from cove.cli.signals import raise_on_signal
from cove.runtime.setup import prepare_python


def setup(
    anew: Annotated[bool, typer.Option("--anew", help="Make the environment again.")] = False,
) -> None:
    """Make the Python environment that sandboxes see: IPython, numpy, pandas, matplotlib.

    It lies in the state directory. To use one of your own that has IPython, set COVE_PYTHON to its directory.
    """
    raise_on_signal()
    path = prepare_python(_tell, anew=anew)
    configured = os.environ.get("COVE_PYTHON") or str(path)
    if configured == str(path):
        print(f"Code contexts run on {path}")
    else:
        print(f"{path} is ready, but COVE_PYTHON is set: code contexts run on {configured}")


def _tell(message: str) -> None:
    print(f"{message} ...", flush=True)
