"""`cove cluster`: several machines as one server, on Ray."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from cove.cli.commands import make_program
from cove.cli.connection import KeyOption, Server, UrlOption
from cove.cli.descriptors import say, show
from cove.cli.move import move_all
from cove.cli.options import JsonOption
from cove.cli.serve import run_server
from cove.cli.signals import finish
from cove.cli.table import print_json, print_table
from cove.errors import PlacementUnavailable, ValidationFailed
from cove.local.state import default_home
from cove.model.cluster import Member, Members
from cove.server.cluster.agent_protocol import (
    AgentReport,
    Answer,
    Call,
    Drain,
    Forget,
    Leave,
    NodeReport,
    Report,
    agent_socket,
)
from cove.server.cluster.engine_placement import call_agent
from cove.server.cluster.joining import (
    default_ip,
    find_token,
    load_node,
    make_token,
    read_token,
)
from cove.server.cluster.nodes import Health, read_nodes
from cove.server.cluster.ray_probe import Welcome, check_ray_is_installed, probe
from cove.server.configuration import RayRole
from cove.server.gateway.auth import GIVEN_KEY
from cove.server.sandboxes.directory import Directory
from cove.server.sandboxes.members import is_list, read_members

_CALL_SECONDS = 30.0
_RAY_PORT = 6379

cluster = make_program(
    "Several machines as one server, on Ray (`pip install 'cove[cluster]'`) or, for `status`, by a list of nodes."
)

HomeOption = Annotated[Path | None, typer.Option(metavar="DIR", help="State directory; COVE_HOME by default.")]
NameOption = Annotated[str | None, typer.Option(metavar="NAME", help="Name of this node; the machine's by default.")]
IpOption = Annotated[str | None, typer.Option(metavar="IP", help="Address of this machine for the other nodes.")]
SlotsOption = Annotated[
    int | None, typer.Option(metavar="NUMBER", help="Sandboxes that this node has room for; 64 by default.")
]
TokenOption = Annotated[Path | None, typer.Option(metavar="FILE", help="The cluster's token.")]
HostOption = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address to listen on; all by default.")]
PortOption = Annotated[int | None, typer.Option(metavar="PORT", help="Port of the API; 8787 by default.")]
ConfigOption = Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file, as for `cove serve`.")]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The name of a node.")]
UndoOption = Annotated[bool, typer.Option("--undo", help="Take it back.")]


@cluster.command()
def start(
    ray_port: Annotated[int, typer.Option(metavar="PORT", help="Port of Ray's head.")] = _RAY_PORT,
    name: NameOption = None,
    ip: IpOption = None,
    slots: SlotsOption = None,
    token_file: TokenOption = None,
    host: HostOption = None,
    port: PortOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve as the first node of a cluster, with Ray's head, until told to stop."""
    state = (home or default_home()).absolute()
    token = find_token(token_file) if token_file else make_token(state)
    address = f"{ip or default_ip()}:{ray_port}"
    say(f"Other machines join by: cove cluster join {address} --token-file FILE, which is a copy of {token}")
    say(f"Unless you give one, the key of the API is one that all nodes derive from it, in {state / GIVEN_KEY}")
    ray: dict[str, object] = {"role": RayRole.HEAD, "address": address, "slots": slots, "ip": ip}
    _serve(state, config, {"host": host, "port": port}, name, token, ray)


@cluster.command()
def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where Ray's head listens.")],
    token_file: TokenOption = None,
    name: NameOption = None,
    ip: IpOption = None,
    slots: SlotsOption = None,
    host: HostOption = None,
    port: PortOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve as one more node of a cluster until told to stop."""
    head, separator, number = address.rpartition(":")
    if not separator or not head or not number.isdigit():
        raise ValidationFailed(f"the head must be like 10.0.0.1:{_RAY_PORT}, not {address!r}")
    token = find_token(token_file)
    check_ray_is_installed()
    read_token(token)
    state = (home or default_home()).absolute()
    if read_members(state) is None:  # who was a node before serves at once: its sandboxes need no head
        _check_welcome(address, token)
    own = ip or default_ip(head)
    ray: dict[str, object] = {"role": RayRole.JOIN, "address": address, "slots": slots, "ip": own}
    _serve(state, config, {"host": host, "port": port}, name, token, ray)


def _check_welcome(address: str, token: Path) -> None:
    outcome, _ = probe(address, str(token))
    if outcome is Welcome.REFUSED:
        raise ValidationFailed(f"Ray's head at {address} does not know the token in {token}: copy that of the head")
    if outcome is Welcome.UNREACHABLE:
        say(f"Ray's head at {address} does not answer: it is asked again and again.")


def _serve(
    state: Path,
    config: Path | None,
    options: dict[str, object],
    name: str | None,
    token: Path,
    ray: dict[str, object],
) -> None:
    check_ray_is_installed()
    given = {key: value for key, value in ray.items() if value is not None}
    run_server(state, load_node(state, config, options, name, token, given))


@cluster.command()
def status(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show the nodes, as this one knows them."""
    state = (home or default_home()).absolute()
    known = read_members(state)
    if known is not None and is_list(known):
        _show_list(state, known, as_json=as_json)
        return
    report = _call(home, Report()).report
    if report is None:
        raise PlacementUnavailable("the agent of the cluster gave no report")
    if as_json:
        print_json(report)
        return
    print_table(("NODE", "ADDRESS", "ROOM", "STATE", "VERSION"), [_row(each) for each in report.nodes])
    for line in _remarks(report):
        say(line)


def _show_list(state: Path, known: Members, *, as_json: bool) -> None:
    """Show the nodes of a list, and what the server here last heard of each."""
    health = read_nodes(state)
    if as_json:
        nodes = [{"member": each, "health": health.get(each.name)} for each in known.members]
        print_json({"node": known.node, "nodes": nodes})
        return
    rows = [_listed_row(each, health.get(each.name, Health())) for each in known.members]
    print_table(("NODE", "ADDRESS", "STATE", "FREE", "SANDBOXES", "VERSION"), rows)


def _listed_row(member: Member, health: Health) -> tuple[str, ...]:
    told = health.report
    if told is None:
        return member.name, member.address, health.problem or "not asked yet", "", "", ""
    state = health.state if health.since is None else f"{health.state} since {health.since.astimezone():%Y-%m-%d %H:%M}"
    return member.name, member.address, state, str(max(0, told.free)), str(told.sandboxes), told.version


def _row(node: NodeReport) -> tuple[str, str, str, str, str]:
    member = node.member
    state = "draining" if member.is_draining else "up"
    room = "" if member.slots is None else str(member.slots)
    return member.name, member.address, room, state if node.is_alive else "gone", member.version


def _remarks(report: AgentReport) -> list[str]:
    remarks = [] if report.forgotten is None else [report.forgotten]
    if report.is_overcommitted:
        remarks.append(f"node {report.node} has more sandboxes than room: it takes no new ones until there is")
    if report.superseded:
        remarks.append(f"others have taken the names of these sandboxes here: {', '.join(report.superseded)}")
    return remarks


@cluster.command()
def drain(
    node: NodeArgument,
    undo: UndoOption = False,
    move: Annotated[bool, typer.Option("--move", help="Move its stopped sandboxes to other nodes.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="With --move: also those that run, stopped and started.")
    ] = False,
    home: HomeOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Give a node no new sandboxes; those it has stay, unless they are to be moved."""
    if (stop and not move) or (move and undo):
        raise ValidationFailed("--stop goes with --move, and --move not with --undo")
    _call(home, Drain(node=node, undo=undo))
    if move:
        finish(move_all(Server.named(url, api_key), node, stop=stop))


@cluster.command()
def forget(node: NodeArgument, undo: UndoOption = False, home: HomeOption = None) -> None:
    """Give up a node that is gone for good: the names of its sandboxes are free again."""
    freed = _call(home, Forget(node=node, undo=undo)).count
    show(f"node {node} may come back" if undo else f"node {node} is forgotten; names that are free again: {freed}")


@cluster.command()
def leave(home: HomeOption = None) -> None:
    """Take this node out of the cluster and stop its server; its sandboxes live on, for `cove serve`."""
    _call(home, Leave())


def _call(home: Path | None, call: Call) -> Answer:
    state = (home or default_home()).absolute()
    server = Directory(state).server
    if not agent_socket(server).exists():
        _explain_no_agent(state)
    return asyncio.run(call_agent(server, call, _CALL_SECONDS))


def _explain_no_agent(state: Path) -> None:
    """Raise what this node is, if it is none that has an agent."""
    known = read_members(state)
    if known is None:
        raise ValidationFailed(f"no node of a cluster has the state directory {state}: --home or COVE_HOME names it")
    if is_list(known):
        raise ValidationFailed(
            "this cluster is a list of nodes, in the configuration of each: change it there, and restart `cove serve`. "
            "With `max_sandboxes = 0` a node gets no new sandboxes; `cove move ID --stop` moves those that it has"
        )
