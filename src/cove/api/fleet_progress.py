"""Progress of a fleet's map on a terminal."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Protocol


class Shown(Protocol):
    """The bar, told of each result."""

    def __call__(self, is_ok: bool, is_lost: bool, sandboxes: int) -> None:
        """Count a result."""


@asynccontextmanager
async def shown_progress(total: int | None, *, is_wanted: bool | None) -> AsyncIterator[Shown]:
    """Show a bar on standard error; with `is_wanted` None, where that is a terminal."""
    if not (sys.stderr.isatty() if is_wanted is None else is_wanted):
        yield lambda is_ok, is_lost, sandboxes: None
        return
    await asyncio.to_thread(import_module, "rich.progress")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    failed = lost = 0
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        bar = progress.add_task("", total=total)

        def count(is_ok: bool, is_lost: bool, sandboxes: int) -> None:
            nonlocal failed, lost
            lost += is_lost
            failed += not is_ok and not is_lost
            progress.update(bar, advance=1, description=_tell(sandboxes, failed, lost))
            progress.refresh()

        yield count


def _tell(sandboxes: int, failed: int, lost: int) -> str:
    parts = [f"{sandboxes} sandboxes"]
    parts += [f"[red]{failed} failed[/red]"] if failed else []
    parts += [f"[yellow]{lost} lost[/yellow]"] if lost else []
    return ", ".join(parts)
