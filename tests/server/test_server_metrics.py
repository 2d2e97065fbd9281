"""What a server counts over all its workers, and that the dashboard asks for nothing else."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.raw_http import Reply, connect
from support.servers import Server, eventually, serving

from cove import AsyncApiKey, AsyncSandbox, Quota
from cove.errors import LimitExceeded, ValidationFailed
from cove.server.counters import OVERFLOW, Counters, clear_counts, count_rarely, read_counts

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
DASHBOARD = Path(__file__).parents[2] / "packaging" / "grafana" / "cove.json"
EXECS = 12


async def ask(server: Server, path: str, key: str) -> Reply:
    """One request on a connection of its own, which any worker takes."""
    port = urlsplit(server.url).port
    assert port is not None
    async with connect(port) as client:
        client.send(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n\r\n".encode())
        return await client.reply()


async def scrape(server: Server, key: str | None = None) -> Samples:
    """All samples, as a well-kept parser reads them."""
    text = (await ask(server, "/metrics", key or server.key)).body.decode()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


async def test_requests_are_counted_over_all_workers_and_the_dashboard_finds_all_that_it_asks_for(
    other_home: Path,
) -> None:
    with serving(other_home, "--warm", "1") as server:
        await eventually(lambda: any((other_home / "server" / "warm").glob("*/*")))
        made = await AsyncApiKey.create("team", url=server.url, api_key=server.key, quota=Quota(rate=0.001))
        sandbox = await server.create("x")
        for _ in range(EXECS):  # a handle for each, with a connection of its own
            async with AsyncSandbox.connect("x", url=server.url, api_key=server.key) as handle:
                await handle.exec("true")
        with pytest.raises(ValidationFailed):
            await sandbox.exec([])
        for _ in range(5):
            assert (await ask(server, "/v1/sandboxes", "wrong")).status == 401
        await AsyncSandbox.create(id="y", url=server.url, api_key=made.key)
        with pytest.raises(LimitExceeded):
            await AsyncSandbox.list(url=server.url, api_key=made.key)
        brief = await server.create("brief", lifetime=0.2)
        await eventually(lambda: 'cove_evictions_total{reason="lifetime"}' in read_counts(other_home))
        await brief.detach()
        worker = next(pid for pid, role in server.children().items() if role == "worker")
        os.kill(worker, signal.SIGKILL)  # what it has counted is not lost
        await eventually(lambda: len(server.children()) == 3 and worker not in server.children())
        samples = await scrape(server)
        check_counts(samples)
        check_dashboard(samples)
        await check_what_a_tenant_sees(server)
        for id in ("x", "y"):
            (record,) = await asyncio.to_thread(server.directory.find_all, id)
            await server.starter.of(record.tenant).destroy(id)


def check_counts(samples: Samples) -> None:
    assert value(samples, "cove_requests_total", family="sandbox", operation="exec", status="200") == EXECS
    assert value(samples, "cove_requests_total", family="sandbox", operation="exec", status="400") == 1
    assert value(samples, "cove_errors_total", code="VALIDATION_FAILED") == 1
    assert value(samples, "cove_errors_total", code="UNAUTHORIZED") == 5
    assert value(samples, "cove_refused_total", code="UNAUTHORIZED", limit="") == 5
    assert value(samples, "cove_refused_total", code="LIMIT_EXCEEDED", limit="rate") == 1
    assert value(samples, "cove_warm_pool_total", result="hit") >= 1
    assert value(samples, "cove_evictions_total", reason="lifetime") == 1
    assert value(samples, "cove_process_deaths_total", role="worker") == 1
    assert value(samples, "cove_sandboxes", status="running") == 2
    assert value(samples, "cove_owner_sandboxes", owner="team", status="running") == 1
    assert value(samples, "cove_owner_requests_total", owner="team") == 2
    assert value(samples, "cove_owner_errors_total", owner="team") == 1
    check_histogram(samples)


def check_histogram(samples: Samples) -> None:
    """Buckets grow, the last one is all; those who ask for a sandbox's operations have all been timed."""
    name = "cove_request_duration_seconds"
    buckets: dict[str, list[tuple[float, float]]] = {}
    for (sample, labels), number in samples.items():
        if sample == f"{name}_bucket":
            found = dict(labels)
            buckets.setdefault(found["family"], []).append((float(found["le"]), number))
    for family, numbers in buckets.items():
        counts = [number for _, number in sorted(numbers)]
        assert counts == sorted(counts)
        assert counts[-1] == value(samples, f"{name}_count", family=family) > 0
        assert value(samples, f"{name}_sum", family=family) > 0
    total: Counter[str] = Counter()
    for (sample, labels), number in samples.items():
        if sample == "cove_requests_total":
            total[dict(labels)["family"]] += int(number)
    assert value(samples, f"{name}_count", family="sandbox") == total["sandbox"]


def check_dashboard(samples: Samples) -> None:
    """Every query names metrics that there are, and labels that those have."""
    dashboard = json.loads(DASHBOARD.read_text())
    labels: dict[str, set[str]] = {}
    for name, each in samples:
        labels.setdefault(name, set()).update(key for key, _ in each)
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) >= 12
    for query in queries:
        named = re.findall(r"cove_[a-z_]+", query)
        assert named, query
        wanted = {each for group in re.findall(r"by \(([a-z, ]+)\)", query) for each in group.split(", ")}
        wanted |= set(re.findall(r"([a-z]+)=", query))
        for name in named:
            assert name in labels, f"{query}: there is no {name}"
            assert wanted <= labels[name], f"{query}: {name} has only {labels[name]}"
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


async def check_what_a_tenant_sees(server: Server) -> None:
    """Its own, and nothing of the server or of others."""
    key = await AsyncApiKey.create("other", url=server.url, api_key=server.key)
    await AsyncSandbox.list(url=server.url, api_key=key.key)
    samples = await scrape(server, key.key)
    assert value(samples, "cove_owner_requests_total", owner="other") == 1
    owners = {dict(labels).get("owner") for _, labels in samples if dict(labels).get("owner")}
    assert owners == {"other"}
    assert not {name for name, _ in samples if name.startswith(("cove_requests", "cove_errors", "cove_refused"))}


def test_counts_outlive_who_counts_and_a_cut_off_name(tmp_path: Path) -> None:
    for _ in range(2):
        counters = Counters(tmp_path, "worker-0")
        counters.read()
        counters.add("a")
        counters.add("b", 0.5)
        counters.close()
        with open(tmp_path / "server" / "counts" / "worker-0.names", "ab") as file:
            file.write(b"cut off by a kil")
    count_rarely(tmp_path, "a")
    assert read_counts(tmp_path) == {"a": 3.0, "b": 1.0}
    clear_counts(tmp_path)
    assert read_counts(tmp_path) == {}


def test_names_without_end_take_no_more_room(tmp_path: Path) -> None:
    counters = Counters(tmp_path, "worker-0")
    for number in range(9000):
        counters.add(str(number))
    counters.close()
    counts = read_counts(tmp_path)
    assert sum(counts.values()) == 9000
    assert counts[OVERFLOW] == 9000 - (len(counts) - 1) > 0
