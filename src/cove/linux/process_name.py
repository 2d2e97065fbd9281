"""Set the name of this process as ps(1) and top(1) show it: proc(5), comm."""

from pathlib import Path


def name_process(name: str) -> None:
    """Set the name; the kernel keeps 15 characters."""
    Path("/proc/self/comm").write_text(name)
