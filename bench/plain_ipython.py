"""IPython in one plain process of the environment that contexts run on: the floor of code contexts."""

import subprocess
from pathlib import Path
from typing import Self

# Answers each line on its standard input: the code is Python's repr of a string.
_PROGRAM = r"""
import ast, os, sys, time
os.environ["IPYTHONDIR"] = "/tmp/.ipython-bench"
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
config.HistoryManager.hist_file = ":memory:"
config.InteractiveShell.colors = "NoColor"
shell = InteractiveShell.instance(config=config)
output, sys.stdout = sys.stdout, open(os.devnull, "w")
for line in sys.stdin:
    verb, code, count = ast.literal_eval(line)
    if verb == "run":
        value = shell.run_cell(code, store_history=True).result
    elif verb == "time":
        began = time.perf_counter()
        for _ in range(count):
            shell.run_cell(code, store_history=True)
        value = (time.perf_counter() - began) / count
    else:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(write, repr(shell.run_cell(code, store_history=True).result).encode())
            os._exit(0)
        value = os.read(read, 100).decode()
        os.close(read); os.close(write)
        os.waitpid(pid, 0)
    print(repr(value), file=output, flush=True)
"""


class PlainIPython:
    """A running one; every call is one line there and one line back."""

    def __init__(self, environment: Path) -> None:
        self._process = subprocess.Popen(
            [environment / "bin" / "python3", "-I", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def run(self, code: str) -> str:
        """Run a cell, give its result."""
        return self._ask("run", code)

    def fork_and_run(self, code: str) -> str:
        """Run a cell in a fork that ends afterwards."""
        return self._ask("fork", code)

    def time_cells(self, code: str, count: int) -> float:
        """Seconds that one cell takes when nobody has to be told."""
        return float(self._ask("time", code, count))

    def _ask(self, verb: str, code: str, count: int = 1) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{(verb, code, count)!r}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()
