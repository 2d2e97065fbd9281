"""`cove verify`: attempts to break out of a real sandbox on this machine, each with a control that proves it works."""

import asyncio
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from cove.cli.descriptors import leave, printable
from cove.cli.signals import until_signal
from cove.cli.table import print_json
from cove.verify.battery import prepared_host
from cove.verify.battery import verify as run_battery
from cove.verify.findings import Finding, Report, Verdict, make_report

if TYPE_CHECKING:
    from rich.table import Table


def verify(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show what was blocked, too.")] = False,
) -> None:
    """Try to break out of a sandbox on this machine; exit code 1 when an attempt succeeds."""
    findings: list[Finding] = []
    with prepared_host() as facts:
        stopped = asyncio.run(until_signal(_collect(facts, findings)))
    if stopped:
        leave(stopped)
    report = make_report(findings)
    if as_json:
        print_json(report)
    else:
        _print_report(report, show_all=show_all)
    raise typer.Exit(0 if report.tight else 1)


async def _collect(facts: dict[str, str], findings: list[Finding]) -> int:
    """All attempts together can take a minute: somebody who watches is told so."""
    _tell("trying to break out, which can take a minute ...")
    async for finding in run_battery(facts):
        findings.append(finding)
        _tell(f"{len(findings)} attempts judged ...")
    _tell("")
    return 0


def _tell(progress: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)


def _print_report(report: Report, *, show_all: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    areas = dict.fromkeys(finding.area for finding in report.findings)
    for area in areas:
        found = [finding for finding in report.findings if finding.area == area]
        blocked = sum(finding.verdict is Verdict.BLOCKED for finding in found)
        console.print(f"\n{area}: {blocked} of {len(found)} blocked", style="bold")
        shown = found if show_all else [finding for finding in found if finding.verdict is not Verdict.BLOCKED]
        if shown:
            console.print(_table(shown))
    summary = f"\n{report.blocked} blocked, {report.open} open, {report.not_testable} not testable here."
    console.print(summary, style="bold green" if report.tight else "bold red")


def _table(findings: Iterable[Finding]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    styles = {Verdict.BLOCKED: "green", Verdict.OPEN: "bold red", Verdict.NOT_TESTABLE: "yellow"}
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        words = (Text(printable(text), overflow="fold") for text in (finding.what, finding.why))
        table.add_row(Text(finding.verdict, styles[finding.verdict]), *words)
    return table
