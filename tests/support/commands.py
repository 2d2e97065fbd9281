"""`cove` as people type it, against a server of its own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from support.servers import Server, serving

COVE = str(Path(sys.executable).parent / "cove")


class Piped(subprocess.Popen[bytes]):
    """A program whose streams are pipes, those that are used."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]


class Cli:
    """Runs subcommands with the environment that makes them find the server and its key."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.environment = {**os.environ, "COVE_HOME": str(server.home), "COVE_URL": server.url}

    def __call__(self, *arguments: str, stdin: bytes = b"", **more: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [COVE, *arguments], input=stdin, capture_output=True, timeout=60, env={**self.environment, **more}
        )

    def text(self, *arguments: str, stdin: bytes = b"") -> str:
        """What it prints when it succeeds."""
        end = self(*arguments, stdin=stdin)
        assert (end.returncode, end.stderr) == (0, b""), end
        return end.stdout.decode()

    def json(self, *arguments: str) -> Any:  # as it prints it
        """What it prints with --json, read."""
        return json.loads(self.text(*arguments, "--json"))

    def start(self, *arguments: str) -> Piped:
        """A subcommand that goes on."""
        return Piped(
            [COVE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    @contextmanager
    def sandbox(self, *options: str) -> Iterator[str]:
        """The id of a sandbox that is removed at the end."""
        id = self.text("create", *options).strip()
        try:
            yield id
        finally:
            self("rm", "-f", id)


@contextmanager
def cli_with_server(*options: str) -> Iterator[Cli]:
    """As root, every directory above a state directory must be open to the sandboxes' users."""
    home = Path(tempfile.mkdtemp(prefix="cove-cli-", dir="/tmp"))
    home.chmod(0o711)
    try:
        with serving(home, *options) as server:
            yield Cli(server)
    finally:
        shutil.rmtree(home)


@pytest.fixture(scope="module")
def cli_of_module() -> Iterator[Cli]:
    """`cove = cli_of_module` gives a module's tests one server."""
    with cli_with_server() as cli:
        yield cli


@pytest.fixture
def sandbox_of_test(cove: Cli) -> Iterator[str]:
    """`sandbox = sandbox_of_test` gives each test a sandbox on it."""
    with cove.sandbox() as id:
        yield id
