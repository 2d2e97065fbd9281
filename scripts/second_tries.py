"""Try tests that failed once more, and say which of them passed only then.

    second_tries.py KNOWN [PYTEST_ARGUMENT ...]

Takes what failed from pytest's cache. KNOWN lists those that may fail by the machine's doing, with a reason each: they
get two tries more. A test that is not in it has to pass at its first try.
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
    return _report(failed, passed, known)


def _report(failed: set[str], passed: dict[str, int], known: list[Known]) -> int:
    unknown = 0
    for id, number in sorted(passed.items()):
        reasons = [entry.reason for entry in known if entry.matches(id)]
        unknown += not reasons
        print(f"PASSED AT TRY {number}: {id}: {reasons[0] if reasons else 'not a known one'}")
    for id in sorted(failed):
        print(f"FAILED IN EVERY TRY: {id}")
    print(f"{len(failed)} failed, {len(passed)} passed at a later try, of which {unknown} are not known to be flaky.")
    return 1 if failed or unknown else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
