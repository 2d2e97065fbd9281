"""Findings of a verification: verdicts and the report."""

from enum import StrEnum

import msgspec

from cove.verify.inside.harness import BLOCKED, OPEN


class Verdict(StrEnum):
    """The verdict on an attempt inside, where its control outside has succeeded."""

    BLOCKED = "blocked"
    OPEN = "open"
    NOT_TESTABLE = "not testable"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. `what` is what it would mean if it had succeeded; `why` says what stopped it, or what it reached."""

    area: str
    name: str
    what: str
    verdict: Verdict
    why: str


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one run of one probe: open, blocked, or broken."""

    area: str
    name: str
    what: str
    verdict: str
    why: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts and their verdicts. The sandbox is tight when nothing was open."""

    tight: bool
    blocked: int
    open: int
    not_testable: int
    findings: list[Finding]


def judge(inside: Attempt, control: Attempt) -> Finding:
    """Judge: an attempt proves something only where its control succeeds; one that succeeds inside needs no proof."""
    if inside.verdict == OPEN:
        verdict, why = Verdict.OPEN, inside.why
    elif control.verdict != OPEN:
        outside = "outside too: " if control.verdict == BLOCKED else ""
        verdict, why = Verdict.NOT_TESTABLE, f"{outside}{control.why}"
    elif inside.verdict == BLOCKED:
        verdict, why = Verdict.BLOCKED, inside.why
    else:
        verdict, why = Verdict.NOT_TESTABLE, inside.why
    return Finding(area=inside.area, name=inside.name, what=inside.what, verdict=verdict, why=why)


def make_report(findings: list[Finding]) -> Report:
    """Count verdicts."""
    counts = {verdict: sum(finding.verdict is verdict for finding in findings) for verdict in Verdict}
    return Report(
        tight=not counts[Verdict.OPEN],
        blocked=counts[Verdict.BLOCKED],
        open=counts[Verdict.OPEN],
        not_testable=counts[Verdict.NOT_TESTABLE],
        findings=findings,
    )
