"""Every attempt of `cove verify`, each a test; and the command itself."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cove.errors import SandboxUnavailable
from cove.verify import battery
from cove.verify.findings import Attempt, Finding, Report, Verdict, judge, make_report
from cove.verify.inside import calls, harness, network, policy, privilege, processes, resources, root, view
from cove.verify.outside import PROBES

COVE = str(Path(sys.executable).parent / "cove")
INSIDE = list(harness.PROBES)
AS_ROOT = [
    f"{name}{battery.AS_ROOT}"
    for name, probe in harness.PROBES.items()
    if probe.area in (*battery.PLAIN_AREAS.split(","), battery.LIMITED_AREAS) and name not in battery.OWN_TO_ROOT
]
assert all((battery, calls, network, policy, privilege, processes, resources, root, view))


@pytest.fixture(scope="module")
def ended(cove_home: Path) -> "subprocess.CompletedProcess[str]":
    """The command with the whole battery, run once."""
    return subprocess.run([COVE, "verify", "--json"], capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def report(ended: "subprocess.CompletedProcess[str]") -> Report:
    return msgspec.json.decode(ended.stdout, type=Report)


@pytest.fixture(scope="module")
def findings(report: Report) -> dict[str, Finding]:
    return {finding.name: finding for finding in report.findings}


def test_there_are_more_than_two_hundred_attempts_in_sixteen_areas(findings: dict[str, Finding]) -> None:
    assert len(findings) == len(INSIDE) + len(AS_ROOT) + len(PROBES) > 200
    areas = {finding.area.removesuffix(", as root") for finding in findings.values()}
    assert len(areas) == 16
    assert areas >= {"network policy", "state", "images", "mounts", "root"}


def test_the_controls_prove_most_attempts(findings: dict[str, Finding]) -> None:
    proven = [finding for finding in findings.values() if finding.verdict is Verdict.BLOCKED]
    assert len(proven) > (150 if os.geteuid() == 0 else 60)


@pytest.mark.parametrize("name", [*INSIDE, *AS_ROOT, *(each.name for each in PROBES)])
def test_an_attempt_is_blocked(name: str, findings: dict[str, Finding]) -> None:
    finding = findings[name]
    if finding.verdict is Verdict.NOT_TESTABLE:
        pytest.skip(f"not testable here: {finding.why}")
    assert finding.verdict is Verdict.BLOCKED, f"{finding.what}: {finding.why}"


def attempt(verdict: str, why: str = "") -> Attempt:
    return Attempt(area="a", name="n", what="w", verdict=verdict, why=why)


@pytest.mark.parametrize(
    ("inside", "control", "verdict"),
    [
        ("blocked", "open", Verdict.BLOCKED),
        ("open", "open", Verdict.OPEN),
        ("open", "blocked", Verdict.OPEN),
        ("blocked", "blocked", Verdict.NOT_TESTABLE),
        ("blocked", "broken", Verdict.NOT_TESTABLE),
        ("broken", "open", Verdict.NOT_TESTABLE),
    ],
)
def test_only_an_attempt_whose_control_succeeds_proves_something(inside: str, control: str, verdict: Verdict) -> None:
    assert judge(attempt(inside), attempt(control)).verdict is verdict


def test_one_open_attempt_is_enough_to_fail() -> None:
    blocked = judge(attempt("blocked"), attempt("open"))
    assert make_report([blocked]).tight
    report = make_report([blocked, judge(attempt("open", "reached"), attempt("open"))])
    assert (report.tight, report.open, report.blocked) == (False, 1, 1)


def test_the_command_says_what_it_found_and_ends_by_it(
    ended: "subprocess.CompletedProcess[str]", report: Report
) -> None:
    found_open = [finding for finding in report.findings if finding.verdict is Verdict.OPEN]
    assert (ended.returncode, report.tight, found_open) == (0, True, []), ended.stderr


@pytest.mark.anyio
async def test_where_there_are_no_images_what_root_can_do_is_not_testable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise SandboxUnavailable("images need Linux 5.14 or newer")

    monkeypatch.setattr(battery, "system_of_the_host", refuse)
    (finding,) = [each async for each in battery.verify_root({})]
    assert (finding.verdict, finding.why) == (Verdict.NOT_TESTABLE, "images need Linux 5.14 or newer")
