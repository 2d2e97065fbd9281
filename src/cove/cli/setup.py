"""`cove setup`: what code contexts run on, made once."""

from typing import Annotated

import typer

from cove.runtime.setup import prepare_python


def setup(
    anew: Annotated[bool, typer.Option("--anew", help="Make the environment again, with the latest packages.")] = False,
) -> None:
    """Make the Python environment that sandboxes see: IPython, numpy, pandas, matplotlib.

    It lies in the state directory. To use one of your own that has IPython, set COVE_PYTHON to its directory.
    """
    path = prepare_python(_tell, anew=anew)
    print(f"Code contexts run on {path}")


def _tell(message: str) -> None:
    print(f"{message} ...", flush=True)
