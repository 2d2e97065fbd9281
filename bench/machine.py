"""The machine and the programs that the figures were measured on."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import cove


def machine_facts(loop: str) -> dict[str, str | int | float]:
    """What a reader needs in order to compare two runs."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cove": cove.__version__,
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "loop": loop,
        "bwrap": _first_line(["bwrap", "--version"]),
        "bash": _first_line(["bash", "--version"]),
        "user": "root" if os.geteuid() == 0 else "plain",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _first_line(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"
