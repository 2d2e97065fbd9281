"""Checks of `cove doctor --cluster`: ports, clocks and versions; the agent and token of Ray, or the peer key."""

import asyncio
import http.client
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from cove.cli.check import Check, missing, ok, warning
from cove.errors import CoveError
from cove.model.cluster import Member, Members
from cove.server.cluster.agent_protocol import AgentReport, Report
from cove.server.cluster.engine_placement import call_agent
from cove.server.cluster.joining import read_token
from cove.server.cluster.nodes import OTHER_KEY, Health, NodeState, read_nodes
from cove.server.cluster.ray_probe import Welcome, check_ray_is_installed, probe
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.members import is_list, read_members

_CONNECT_SECONDS = 3.0
_CLOCK_SECONDS = 5.0


def examine_cluster(home: Path) -> list[Check]:
    """Look at the cluster from this node."""
    known = read_members(home)
    if known is not None and is_list(known):
        return _examine_list(home, known)
    try:
        check_ray_is_installed()
        report = asyncio.run(call_agent(Directory(home).server, Report())).report
        assert report is not None
    except CoveError as error:
        advice = (
            "Start this node with `cove cluster start` or `cove cluster join`, and wait until Ray has started; "
            "or with `cove serve` and a list of members in its configuration."
        )
        return [missing("agent", error.message, advice), *_check_nodes(home)]
    return [_check_agent(report), *_check_token(report), *_check_nodes(home), _check_versions(report)]


def _examine_list(home: Path, known: Members) -> list[Check]:
    """Look at a cluster that is a list of nodes: what the server here finds of the others, and what they answer."""
    found = {name: health for name, health in read_nodes(home).items() if name in {each.name for each in known.members}}
    listed = ok("list", f"node {known.node} of {len(known.members)}: {', '.join(each.name for each in known.members)}")
    return [listed, *_check_nodes(home), _check_peer_key(found), _check_listed_versions(found)]


def _check_peer_key(found: dict[str, Health]) -> Check:
    others = sorted(name for name, health in found.items() if OTHER_KEY in health.problem)
    if others:
        advice = "Copy one peer key to every node, the file `peer_key_file`, and restart `cove serve` there."
        return missing("peer key", f"these nodes do not know that of this one: {', '.join(others)}", advice)
    if not any(health.report is not None for health in found.values()):
        return missing("peer key", "no node was asked yet", "Start `cove serve` on this node.")
    return ok("peer key", "is the same")


def _check_listed_versions(found: dict[str, Health]) -> Check:
    versions = {
        health.report.version for health in found.values() if health.report is not None and health.state is NodeState.UP
    }
    if len(versions) > 1:
        advice = "Upgrade node by node, and restart `cove serve` there; sandboxes live on."
        return warning("versions", f"nodes differ: Cove {', '.join(sorted(versions))}", advice)
    return ok("versions", f"Cove {' '.join(versions)}".strip())


def _check_agent(report: AgentReport) -> Check:
    if report.forgotten is not None:
        return missing("agent", report.forgotten, f"Run `cove cluster forget {report.node} --undo` on any node.")
    if report.is_overcommitted:
        found = f"node {report.node} has {report.sandboxes} sandboxes, and less room"
        return warning("agent", found, "Destroy some, or let others of Ray's work on this machine end.")
    return ok("agent", f"node {report.node} of {len(report.nodes)}, with {report.sandboxes} sandboxes")


def _check_token(report: AgentReport) -> list[Check]:
    try:
        read_token(Path(report.token_file))
    except CoveError as error:
        return [missing("token", error.message, "Copy the token of the first node, for this user only.")]
    with_token, _ = probe(report.engine_address, report.token_file)
    without, _ = probe(report.engine_address, None)
    return [_judge_token(with_token, report.engine_address), _judge_need(without)]


def _judge_token(outcome: Welcome, address: str) -> Check:
    if outcome is Welcome.WELCOME:
        return ok("token", f"Ray's head at {address} knows it")
    if outcome is Welcome.REFUSED:
        return missing("token", f"Ray's head at {address} does not know it", "Copy the token of the first node.")
    return missing("token", f"Ray's head at {address} does not answer", "Start it, or open its port in the firewall.")


def _judge_need(outcome: Welcome) -> Check:
    if outcome is Welcome.REFUSED:
        return ok("Ray", "lets nobody in without a token")
    if outcome is Welcome.UNREACHABLE:
        return missing("Ray", "does not answer", "Start its head: `cove cluster start`.")
    advice = "Stop it, and start it with RAY_AUTH_MODE=token on every node: `cove cluster start` does."
    return missing("Ray", "lets in everybody who reaches it: they can run programs on all nodes", advice)


def _check_nodes(home: Path) -> list[Check]:
    """Ask every node for its time: whether its port can be reached, and how far the clocks are apart."""
    known = read_members(home)
    answers = {member: _time_of(member) for member in (() if known is None else known.members)}
    silent = sorted(member.name for member, found in answers.items() if found is None)
    apart = {member.name: round(abs(found)) for member, found in answers.items() if found is not None}
    late = {name: seconds for name, seconds in apart.items() if seconds > _CLOCK_SECONDS}
    ports = ok("ports", f"{len(answers)} nodes answer")
    if silent:
        found = f"these nodes do not answer: {', '.join(silent)}"
        ports = missing("ports", found, "Start them, and open the port of the API between all nodes.")
    clocks = ok("clocks", f"within {_CLOCK_SECONDS:g} s")
    if late:
        found = ", ".join(f"{name} is {seconds} s off" for name, seconds in sorted(late.items()))
        clocks = warning("clocks", found, "Let all nodes keep the time by NTP: lifetimes and logs go by it.")
    return [ports, clocks]


def _time_of(member: Member) -> float | None:
    """Return how many seconds a node's clock is ahead of this one's; None when it does not answer."""
    parts = urlsplit(member.address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_SECONDS)
    try:
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("date")
        return None if date is None else parsedate_to_datetime(date).timestamp() - time.time()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _check_versions(report: AgentReport) -> Check:
    kinds = {
        "Ray": {node.engine for node in report.nodes},
        "Python": {node.python.rpartition(".")[0] for node in report.nodes},
        "Cove": {node.member.version for node in report.nodes},
    }
    several = [f"{name} {', '.join(sorted(found))}" for name, found in kinds.items() if len(found) > 1]
    if several:
        advice = "Ray and Python must be the same on all nodes: stop the nodes, upgrade, start; sandboxes live on."
        return missing("versions", f"nodes differ: {'; '.join(several)}", advice)
    return ok("versions", ", ".join(f"{name} {' '.join(found)}" for name, found in kinds.items()))
