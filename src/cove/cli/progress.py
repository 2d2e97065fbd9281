"""Show how far a transfer of layers is, on standard error: a bar on a terminal, a line for each layer elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cove.model import TransferProgress

Show = Callable[[TransferProgress], None]


@contextmanager
def shown_progress(*, by_lines: bool = True) -> Iterator[Show]:
    """Give what is told how far it is; a bar is gone at the end. Lines only if `by_lines`."""
    if not sys.stderr.isatty():
        yield _Lines().show if by_lines else lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = [TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=None)

        def show(told: TransferProgress) -> None:
            bar.update(task, description=_layers(told), completed=told.bytes, total=told.total_bytes or None)
            bar.refresh()

        yield show


class _Lines:
    """Prints a line when a layer is done."""

    def __init__(self) -> None:
        self._last = 0

    def show(self, told: TransferProgress) -> None:
        if told.total_layers and told.layers > self._last:
            self._last = told.layers
            print(f"{_layers(told)}, {told.bytes / 1e6:.1f} MB", file=sys.stderr, flush=True)


def _layers(told: TransferProgress) -> str:
    return f"{told.layers}/{told.total_layers} layers" if told.total_layers else ""
