"""What became of each machine, kept from one run to the next."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kernels.cases import Case
from kernels.machine import Result


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one machine: its kernel's version and the results, or why it could not be had."""

    case: Case
    version: str = ""
    results: list[Result] = field(default_factory=list)
    reason: str = ""

    @property
    def is_as_expected(self) -> bool:
        """Return whether nothing failed, and sandboxes were refused exactly where the machine allows none."""
        if self.reason:
            return True
        ends = {result.end for result in self.results}
        if self.case.is_refused:
            return {result.end for result in self.results if result.user != "root"} == {"refused"}
        return bool(ends) and "failed" not in ends


def keep(cache: Path, outcome: Outcome) -> None:
    """Write down the results, in place of earlier ones of the same checks on the same kernel."""
    earlier = find_kept(cache, outcome.case)
    results = {}
    if earlier is not None and earlier.version == outcome.version:
        results = {(result.user, result.check): result for result in earlier.results}
    results |= {(result.user, result.check): result for result in outcome.results}
    content = {
        "version": outcome.version,
        "results": [asdict(result) for result in results.values()],
        "reason": outcome.reason,
    }
    _file(cache, outcome.case).write_text(json.dumps(content, indent=1))


def find_kept(cache: Path, case: Case) -> Outcome | None:
    """Return what is known of a machine; None for one that was never tried."""
    try:
        content = json.loads(_file(cache, case).read_text())
    except FileNotFoundError:
        return None
    results = [Result(**result) for result in content["results"]]
    return Outcome(case, content["version"], results, content["reason"])


def _file(cache: Path, case: Case) -> Path:
    return cache / f"results-{case.slug}.json"
