"""`cove doctor`: check this machine, and say what is missing and what to do about it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from cove.cli.check import Check, Status
from cove.cli.check_cluster import examine_cluster
from cove.cli.check_kernel import (
    check_bubblewrap,
    check_cgroups,
    check_core_handler,
    check_disk,
    check_namespaces,
    check_seccomp,
    check_shared_limits,
)
from cove.cli.check_packages import check_bootstrap, check_console, check_extras
from cove.cli.check_programs import (
    check_buckets,
    check_git,
    check_home,
    check_image_users,
    check_interpreter,
    check_node,
    check_python,
    check_user,
)
from cove.cli.check_trials import check_environment, check_snapshots, check_trial, try_network
from cove.cli.descriptors import printable
from cove.cli.table import print_json
from cove.local.state import default_home

if TYPE_CHECKING:
    from rich.table import Table


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of a run. Isolation is possible when a real sandbox has run a command."""

    isolation_possible: bool
    checks: list[Check]


def doctor(
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Check the cluster: token, ports, clocks, versions.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Check what Cove needs from this machine; exit code 1 when isolation is not possible."""
    if cluster:
        _print_cluster(as_json=as_json)
    report = examine()
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    raise typer.Exit(0 if report.isolation_possible else 1)


def _print_cluster(*, as_json: bool) -> NoReturn:
    """Print the checks of the cluster, and end: with exit code 1 when one found something missing."""
    checks = examine_cluster(default_home())
    if as_json:
        print_json(checks)
    else:
        from rich.console import Console

        Console(highlight=False).print(_table(checks))
    raise typer.Exit(1 if any(check.status is Status.MISSING for check in checks) else 0)


def examine() -> Report:
    """Look at everything; the trial comes last, because it needs all that is checked before."""
    checks = [check() for check in _CHECKS]
    trial = asyncio.run(check_trial())
    return Report(isolation_possible=trial.status is Status.OK, checks=[*checks, trial])


_CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_bubblewrap,
    check_namespaces,
    check_seccomp,
    check_cgroups,
    check_interpreter,
    check_user,
    check_image_users,
    check_shared_limits,
    check_core_handler,
    check_home,
    check_disk,
    check_snapshots,
    check_environment,
    check_node,
    check_git,
    check_buckets,
    check_bootstrap,
    check_extras,
    check_console,
    lambda: asyncio.run(try_network()),
)


def _print_report(report: Report) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_table(report.checks))
    if report.isolation_possible:
        console.print("\nIsolation works on this machine.", style="bold green")
    else:
        console.print("\nIsolation is not possible on this machine yet.", style="bold red")


def _table(checks: Iterable[Check]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    styles = {Status.OK: "green", Status.WARNING: "yellow", Status.MISSING: "red"}
    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(
            Text(check.status, styles[check.status]), Text(check.name), Text(printable(check.found), overflow="fold")
        )
        if check.advice:
            table.add_row("", "", Text(printable(check.advice), "bold", overflow="fold"))
    return table
