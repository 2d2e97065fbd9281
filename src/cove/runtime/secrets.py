"""Read secrets from where the host keeps them: the environment, a file, or a command's output. Blocks.

On a server the configuration says which there are and which hosts each may go to. In a program of your own, a secret
that `define_secret` does not know is the environment variable of that name.
"""

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from cove.api.secrets import defined_secrets
from cove.model.secret import SecretSource

_COMMAND_SECONDS = 10.0
_MOST_BYTES = 64 << 10


def read_secrets(names: Iterable[str], sources: Mapping[str, SecretSource] | None = None) -> dict[str, str]:
    """The values of those that are to be had. With `sources`, only those that it defines are."""
    values = {}
    for name in names:
        source = defined_secrets().get(name, SecretSource(env=name)) if sources is None else sources.get(name)
        value = None if source is None else _read(source)
        if value and value.isprintable():
            values[name] = value
    return values


def _read(source: SecretSource) -> str | None:
    try:
        if source.env is not None:
            return os.environ.get(source.env)
        if source.file is not None:
            with Path(source.file).open(encoding="utf-8") as file:
                return file.read(_MOST_BYTES).rstrip("\r\n")
        if source.command is not None:
            ended = subprocess.run(source.command, capture_output=True, timeout=_COMMAND_SECONDS, check=True, text=True)
            return ended.stdout[:_MOST_BYTES].rstrip("\r\n")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return None
