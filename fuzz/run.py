"""Run targets in processes of their own, several at a time, and say how to replay what they found."""

import hashlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzz.target import CORPUS, Target, load

# Inputs that earlier runs found worth keeping, and crashes. Not part of the tree.
WORKING = Path(".fuzz")
CRASHES = WORKING / "crashes"
_MOST_RESIDENT_MIB = 2048
_HANG_SECONDS = 30
_GRACE_SECONDS = 90
_REPLAYS = 3
_SHOWN_LINES = 40
_RUNS = re.compile(rb"Done (\d+) runs in|stat::number_of_executed_units: +(\d+)")
_COVERAGE = re.compile(rb"cov: (\d+)")


# Leaders of the process groups of targets that run.
_running: set[int] = set()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of one target ended: `crash` is the input that broke a property, `repeats` whether it does so again."""

    name: str
    runs: int
    coverage: int
    crash: Path | None
    output: str
    is_lost: bool = False
    repeats: bool = False

    @property
    def is_good(self) -> bool:
        """Return whether nothing was found that happens again, and the time was used if nothing was."""
        return not self.repeats if self.crash is not None else not self.is_lost

    def __str__(self) -> str:
        line = f"{self.name:<16} {self.runs:>9} inputs  {self.coverage:>6} branches"
        if self.crash is not None:
            replay = f"python -m fuzz {self.name} {self.crash}"
            found = f"BROKEN by {self.crash}" if self.repeats else f"broken once, and not again, by {self.crash}"
            line = f"{self.output}\n{line}  {found}\n  replay it: {replay}"
        elif self.is_lost:
            line = f"{self.output}\n{line}  the fuzzer ended before its time"
        return line


def has_engine() -> bool:
    """Return whether atheris is installed: it has wheels for some versions of Python, on x86-64."""
    return importlib.util.find_spec("atheris") is not None


def run(name: str, seconds: int, seed: int) -> Ending:
    """Fuzz one target for so many seconds."""
    target = load(name)
    own = WORKING / "corpus" / name
    own.mkdir(parents=True, exist_ok=True)
    CRASHES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cove-fuzz-", dir=_fast_directory()) as scratch:
        seeds = Path(scratch) / "seeds"
        write_seeds(target, seeds)
        kept = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
        return _run(target, seconds, seed, [str(own), str(seeds), *kept], scratch)


def _fast_directory() -> str | None:
    """Return where files are made fastest, which is memory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def write_seeds(target: Target, directory: Path) -> None:
    """Write the inputs that a target begins with as files."""
    directory.mkdir()
    for seed in target.seeds():
        (directory / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)


def _run(target: Target, seconds: int, seed: int, inputs: list[str], scratch: str) -> Ending:
    found = Path(scratch) / "found"
    found.mkdir()
    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={target.most_bytes}",
        f"-rss_limit_mb={_MOST_RESIDENT_MIB}",
        f"-timeout={_HANG_SECONDS}",
        f"-artifact_prefix={found}/",
        "-print_final_stats=1",
        "-reload=0",
        "-use_value_profile=1",
    ]
    work = Path(scratch) / "work"
    work.mkdir()
    command = [sys.executable, "-m", "fuzz.engine", target.name, *options, *inputs]
    environment = {**os.environ, "TMPDIR": str(work), "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )
    _running.add(process.pid)
    try:
        output, _ = process.communicate(timeout=seconds + _HANG_SECONDS + _GRACE_SECONDS)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        _running.discard(process.pid)
    return _judge(target.name, process.returncode, output, found)


def _judge(name: str, code: int, output: bytes, found: Path) -> Ending:
    written = [path for path in sorted(found.iterdir()) if not path.name.startswith("slow-unit")]
    crash = None
    if written:
        data = written[0].read_bytes()
        crash = CRASHES / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
        crash.write_bytes(data)
    runs = [int(a or b) for a, b in _RUNS.findall(output)]
    coverage = [int(each) for each in _COVERAGE.findall(output)]
    shown = "\n".join(output.decode(errors="replace").splitlines()[-_SHOWN_LINES:])
    repeats = crash is not None and _repeats(name, crash)
    return Ending(name, max(runs, default=0), max(coverage, default=0), crash, shown, code != 0, repeats)


def _repeats(name: str, crash: Path) -> bool:
    """Return whether an input breaks its property again: what a busy machine does to one run does not count."""
    command = [sys.executable, "-m", "fuzz", name, str(crash)]
    try:
        for _ in range(_REPLAYS):
            subprocess.run(command, check=True, capture_output=True, timeout=_HANG_SECONDS + _GRACE_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return True
    return False


def end_all(number: int, _: object) -> None:
    """End every target that runs, and this process: a handler of signals."""
    for leader in list(_running):
        os.killpg(leader, signal.SIGKILL)
    os._exit(128 + number)


def run_all(chosen: list[str], seconds: int, seed: int, jobs: int) -> bool:
    """Fuzz targets, so many at a time; print how each ended, and return whether all were good."""
    with ThreadPoolExecutor(jobs) as pool:
        endings = []
        for ending in pool.map(lambda name: run(name, seconds, seed), chosen):
            print(ending, flush=True)
            endings.append(ending)
    broken = [ending.name for ending in endings if not ending.is_good]
    print(f"{len(endings)} targets, {sum(each.runs for each in endings)} inputs: " + (", ".join(broken) or "all held"))
    return not broken
