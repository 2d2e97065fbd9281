"""Metrics in Prometheus' text format. All workers tell the same: they are read from the machine."""

from collections import Counter
from collections.abc import Callable, Iterable

from cove.linux.cgroup import Hierarchies
from cove.model import SandboxStatus, Usage
from cove.runtime.cgroups import find_groups
from cove.runtime.egress_process import read_totals
from cove.runtime.usage import TOTALS_FILE, measure_processes, with_totals
from cove.server.sandboxes.directory import Directory, Record

_OF_ONE: tuple[tuple[str, str, str, Callable[[Usage], float | None]], ...] = (
    ("memory_bytes", "gauge", "Memory of a running sandbox.", lambda usage: usage.memory_bytes),
    ("cpu_seconds_total", "counter", "Processor time of a running sandbox.", lambda usage: usage.cpu_seconds),
    ("processes", "gauge", "Processes of a running sandbox.", lambda usage: usage.pids),
    ("memory_kills_total", "counter", "Processes ended for want of memory.", lambda usage: usage.memory_kills),
    ("network_sent_bytes_total", "counter", "Bytes that a policy let out.", lambda usage: usage.network_sent_bytes),
    ("network_received_bytes_total", "counter", "Bytes that came in.", lambda usage: usage.network_received_bytes),
    ("network_connections_total", "counter", "Connections to outside.", lambda usage: usage.network_connections),
    ("network_requests_total", "counter", "Requests of intercepted names.", lambda usage: usage.network_requests),
    ("network_refused_total", "counter", "Names, connections and requests refused.", lambda u: u.network_refused),
)


def collect_metrics(directory: Directory, hierarchies: Hierarchies) -> bytes:
    """Collect the number of sandboxes, and the usage of each running one. Blocks."""
    found = [(record, directory.status(record)) for record in directory.list()]
    running = [record for record, status in found if status is SandboxStatus.RUNNING]
    usages = {
        (record.tenant, record.id): usage
        for record in running
        if (usage := _measure(directory, hierarchies, record)) is not None
    }
    return render_metrics((status for _, status in found), usages)


def render_metrics(statuses: Iterable[SandboxStatus], usages: dict[tuple[str, str], Usage]) -> bytes:
    """Render as text, by owner and id. Neither needs escaping: core/identifier, model/api_key."""
    counts = Counter(statuses)
    lines = _head("cove_sandboxes", "gauge", "Sandboxes of this server by status.")
    lines += [f'cove_sandboxes{{status="{status}"}} {counts[status]}' for status in SandboxStatus]
    for name, kind, text, value in _OF_ONE:
        lines += _head(f"cove_sandbox_{name}", kind, text)
        for (owner, id), usage in usages.items():
            if (number := value(usage)) is not None:
                labels = f'sandbox="{id}"' + (f',owner="{owner}"' if owner else "")
                lines.append(f"cove_sandbox_{name}{{{labels}}} {number}")
    return ("\n".join(lines) + "\n").encode()


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _measure(directory: Directory, hierarchies: Hierarchies, record: Record) -> Usage | None:
    holder = directory.holder(record.key)
    if holder is None:
        return None
    try:
        usage = measure_processes(find_groups(hierarchies, record.key), holder[0])
        return with_totals(usage, read_totals(directory.place(record.key) / TOTALS_FILE))
    except FileNotFoundError:
        return None  # it has just ended
