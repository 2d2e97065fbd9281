"""python -m kernels [--only WORDS] [--parts PARTS] [--page FILE] [--cache DIRECTORY] [--mirror NAME=ADDRESS].

The results of each machine are kept with the packages: a run of some machines writes a page of all.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from kernels.apt import Mirrors, NotObtainable, find_mirrors
from kernels.boot_files import fetch_kernel
from kernels.cases import CASES, Case
from kernels.machine import boot
from kernels.outcome import Outcome, find_kept, keep
from kernels.root import make_root
from kernels.table import render, write_page

_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "busybox": "busybox-static",
    "zstd": "zstd",
}


def main() -> int:
    """Boot each machine, print and write what was found, and end with 1 if anything was not as it must be."""
    options = _parse()
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        print(f"Run this as root, which makes root file systems; apt install {' '.join(missing)}", file=sys.stderr)
        return 2
    options.cache.mkdir(parents=True, exist_ok=True)
    mirrors = find_mirrors(dict(options.mirror))
    chosen = [case for case in CASES if options.only in case.name]
    roots: dict[str, Path] = {}
    for case in chosen:
        outcome = _try(case, options, mirrors, roots)
        keep(options.cache, outcome)
        _tell(f"{case.name}: {outcome.reason or ('as expected' if outcome.is_as_expected else 'NOT AS EXPECTED')}")
    outcomes = [found for case in CASES if (found := find_kept(options.cache, case)) is not None]
    print(render(outcomes))
    if options.page is not None:
        write_page(options.page, outcomes)
    return int(not all(outcome.is_as_expected for outcome in outcomes if outcome.case in chosen))


def _try(case: Case, options: argparse.Namespace, mirrors: Mirrors, roots: dict[str, Path]) -> Outcome:
    cache: Path = options.cache
    suite = case.release.user_space
    try:
        files = fetch_kernel(cache, mirrors, case.release)
    except NotObtainable as error:
        return Outcome(case, reason=str(error))
    if suite not in roots:
        _tell(f"the user space of {suite} ...")
        roots[suite] = make_root(cache, mirrors, suite)
    console = cache / f"console-{case.slug}.txt"
    _tell(f"{case.name}: booting {files.version}; its console is in {console} ...")
    results = boot(case, files, roots[suite], console, options.parts)
    for result in results:
        _tell(f"  {result.user} {result.check}: {result.end} in {result.seconds} s: {result.detail}")
    return Outcome(case, files.version, results)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cove-kernels"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels", description="Try Cove on the kernels of distributions.")
    parser.add_argument("--only", default="", metavar="WORDS", help="only machines with these words in their names")
    parser.add_argument("--parts", default="suite,verify", help="what is run: suite, verify, or single checks")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the results into this page")
    parser.add_argument("--cache", type=Path, default=_default_cache(), help="where packages and file systems are kept")
    parser.add_argument(
        "--mirror",
        action="append",
        default=[],
        type=lambda text: text.partition("=")[::2],
        metavar="DISTRIBUTION=ADDRESS",
        help="a mirror that this machine's apt is not configured for: ubuntu=…",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
