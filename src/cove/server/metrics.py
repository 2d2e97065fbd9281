"""What monitoring is told, in Prometheus' text format. All workers tell the same: it is read from the directory."""

from collections import Counter
from collections.abc import Iterable

from cove.model import SandboxInfo, SandboxStatus


def render_metrics(sandboxes: Iterable[SandboxInfo]) -> bytes:
    """How many sandboxes there are."""
    counts = Counter(info.status for info in sandboxes)
    lines = ["# HELP cove_sandboxes Sandboxes of this server by status.", "# TYPE cove_sandboxes gauge"]
    lines += [f'cove_sandboxes{{status="{status}"}} {counts[status]}' for status in SandboxStatus]
    return ("\n".join(lines) + "\n").encode()
