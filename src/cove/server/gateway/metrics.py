"""Metrics in Prometheus' text format. All workers tell the same: they are read from the machine and from files."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from cove.linux.cgroup import Hierarchies
from cove.model import SandboxStatus, Usage
from cove.runtime.cgroups import find_groups
from cove.runtime.egress_process import read_totals
from cove.runtime.usage import TOTALS_FILE, measure_processes, with_totals
from cove.server.counters import BUCKETS, OVERFLOW, read_counts
from cove.server.sandboxes.directory import Directory, Record
from cove.server.sandboxes.warm_pool import WarmPool

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

_DURATION = "cove_request_duration_seconds"
_COUNTED = (
    ("cove_requests_total", "Requests answered, by what they asked for and the HTTP status; 499: the client had gone."),
    ("cove_errors_total", "Requests answered with an error, by its code."),
    ("cove_refused_total", "Requests refused to who may not, or not now; of limits, which."),
    ("cove_warm_pool_total", "Sandboxes created, by whether a warm one was there."),
    ("cove_evictions_total", "Sandboxes stopped or paused when idle, and those whose lifetime ended."),
    ("cove_process_deaths_total", "Workers, zygotes and runtimes that died."),
    ("cove_owner_requests_total", "Requests answered, by the tenant that made them."),
    ("cove_owner_errors_total", "Requests answered with an error, by the tenant that made them."),
    (OVERFLOW, "Events that no number was left for."),
)


def collect_metrics(directory: Directory, hierarchies: Hierarchies) -> bytes:
    """Collect the number of sandboxes, the usage of each running one, and what was counted. Blocks.

    A tenant is told its own: what is not by owner is for those who see all.
    """
    found = [(record, directory.status(record)) for record in directory.list()]
    running = [record for record, status in found if status is SandboxStatus.RUNNING]
    usages = {
        (record.tenant, record.id): usage
        for record in running
        if (usage := measure_running(directory, hierarchies, record)) is not None
    }
    counts = read_counts(directory.home)
    owned = Counter((record.tenant, status) for record, status in found if record.tenant)
    texts = [render_metrics((status for _, status in found), usages), render_owned(owned)]
    if directory.tenant:
        counts = Counter({name: counts[name] for name in counts if f'owner="{directory.tenant}"' in name})
        return b"".join((*texts, render_counts(counts)))
    waiting = _head("cove_warm_pool_waiting", "gauge", "Sandboxes that run already and wait to be created.")
    waiting.append(f"cove_warm_pool_waiting {WarmPool(directory).count_all()}")
    return b"".join((*texts, _encode(waiting), render_counts(counts), render_durations(counts)))


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
    return _encode(lines)


def render_owned(owned: Mapping[tuple[str, SandboxStatus], int]) -> bytes:
    """Render how many sandboxes each tenant has."""
    lines = _head("cove_owner_sandboxes", "gauge", "Sandboxes of a tenant by status.")
    lines += [
        f'cove_owner_sandboxes{{owner="{owner}",status="{status}"}} {number}'
        for (owner, status), number in sorted(owned.items())
    ]
    return _encode(lines)


def render_counts(counts: Mapping[str, float]) -> bytes:
    """Render what was counted: its names are samples already."""
    lines: list[str] = []
    for name, text in _COUNTED:
        lines += _head(name, "counter", text)
        lines += [f"{sample} {counts[sample]:.0f}" for sample in sorted(counts) if sample.partition("{")[0] == name]
    return _encode(lines)


def render_durations(counts: Mapping[str, float]) -> bytes:
    """Render the histogram: what is counted in each bucket alone is told with all below it."""
    sums = sorted(name for name in counts if name.startswith(f"{_DURATION}_sum"))
    lines = _head(_DURATION, "histogram", "Time until an answer was complete, but for streams that clients follow.")
    for name in sums:
        labels = name.partition("{")[2].removesuffix("}")
        buckets = {str(le): f'{_DURATION}_bucket{{{labels},le="{le}"}}' for le in (*BUCKETS, "+Inf")}
        totals = list(accumulate(counts.get(bucket, 0.0) for bucket in buckets.values()))
        lines += [f"{bucket} {total:.0f}" for bucket, total in zip(buckets.values(), totals, strict=True)]
        lines += [f"{name} {counts[name]}", f"{_DURATION}_count{{{labels}}} {totals[-1]:.0f}"]
    return _encode(lines)


def _encode(lines: Iterable[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def measure_running(directory: Directory, hierarchies: Hierarchies, record: Record) -> Usage | None:
    """Measure a sandbox that runs, from outside; None for one that has just ended. Blocks."""
    holder = directory.holder(record.key)
    if holder is None:
        return None
    try:
        usage = measure_processes(find_groups(hierarchies, record.key), holder[0])
        return with_totals(usage, read_totals(directory.place(record.key) / TOTALS_FILE))
    except FileNotFoundError:
        return None  # it has just ended
