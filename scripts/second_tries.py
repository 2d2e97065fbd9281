"""Try tests that failed once more, and say which of them passed only then.

    second_tries.py KNOWN [PYTEST_ARGUMENT ...]

Takes what failed from pytest's cache. KNOWN lists those that may fail by the machine's doing, with a reason each: they
get two tries more. A test that is not in it is forgiven one failure if it then passes five times in a row: a race that
fails every other time does not, a pause of the machine does not come back.
"""

import fnmatch
import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

_CACHE = Path(".pytest_cache/v/cache/lastfailed")
_TRIES_OF_KNOWN = 3
_PASSES_OF_UNKNOWN = 5


@dataclass(frozen=True)
class Known:
    """Tests whose id matches the pattern, as a shell would match it, and why they may fail."""

    tests: str
    reason: str

    def matches(self, id: str) -> bool:
        """A test's parameters belong to its id: `[` in a pattern is no set of characters."""
        return fnmatch.fnmatchcase(id, self.tests.replace("[", "[[]"))


def load_known(path: Path) -> list[Known]:
    """Read the list."""
    return [Known(**entry) for entry in tomllib.loads(path.read_text())["flaky"]]


def last_failed() -> set[str]:
    """The ids of tests that failed when they were last run."""
    return set(json.loads(_CACHE.read_text())) if _CACHE.exists() else set()


def run(ids: set[str], arguments: list[str]) -> int:
    """Run these tests one after the other."""
    return subprocess.run([sys.executable, "-m", "pytest", *arguments, *sorted(ids)], check=False).returncode


def main(known_path: str, *arguments: str) -> int:
    """Returns 0 when all have passed, and all that did so only now are known."""
    known = load_known(Path(known_path))
    failed = first = last_failed()
    if not failed:
        print("Nothing is known of what has failed.")
        return 1
    passed: dict[str, int] = {}
    for number in range(1, _TRIES_OF_KNOWN + 1):
        trying = {id for id in failed if number == 1 or any(entry.matches(id) for entry in known)}
        if not trying:
            break
        print(f"Try {number + 1}, only what has failed:", flush=True)
        code = run(trying, list(arguments))
        if code > 1:
            return code  # not all of them have run
        passed |= dict.fromkeys(trying - last_failed(), number + 1)
        failed = first - set(passed)
    racing, code = _confirm({id for id in passed if not any(entry.matches(id) for entry in known)}, list(arguments))
    return code if code > 1 else _report(failed, passed, racing, known)


def _confirm(unknown: set[str], arguments: list[str]) -> tuple[set[str], int]:
    """Run those that no entry explains until they have passed often enough; returns which of them failed again."""
    racing: set[str] = set()
    for number in range(1, _PASSES_OF_UNKNOWN):
        if not unknown - racing:
            break
        print(f"Pass {number + 1} of what is not known to be flaky:", flush=True)
        code = run(unknown - racing, arguments)
        if code > 1:
            return racing, code
        racing |= last_failed() & unknown
    return racing, 0


def _report(failed: set[str], passed: dict[str, int], racing: set[str], known: list[Known]) -> int:
    unknown = 0
    for id, number in sorted(passed.items()):
        reasons = [entry.reason for entry in known if entry.matches(id)]
        unknown += not reasons
        print(f"PASSED AT TRY {number}: {id}: {reasons[0] if reasons else 'not a known one'}")
    for id in sorted(failed):
        print(f"FAILED IN EVERY TRY: {id}")
    for id in sorted(racing):
        print(f"FAILED AGAIN AFTER IT HAD PASSED: {id}")
    print(f"{len(failed)} failed, {len(passed)} passed at a later try, of which {unknown} are not known to be flaky.")
    return 1 if failed or racing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
