"""`cove serve`: run the server, many sandboxes for many clients over HTTP."""

import os
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cove.cli.descriptors import say
from cove.linux.cgroup import Hierarchies, find_hierarchies
from cove.local.state import default_home
from cove.model import SandboxStatus
from cove.runtime.cgroups import explain_missing
from cove.server.announcement import Event, LogFormat, announce
from cove.server.cluster.joining import find_token, load_node
from cove.server.cluster.ray_probe import check_ray_is_installed
from cove.server.configuration import UNLIMITED, Configuration, OnStop, built_in_defaults, load, read_settings
from cove.server.sandboxes.directory import Directory
from cove.server.supervisor import Supervisor
from cove.server.tracing import find_problem

_SHOWN = ("memory", "cpus", "pids", "disk")


def serve(
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Port of the API; 8787 by default.")] = None,
    preview_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of previews; the next one by default.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Processes that take requests; one for each core, up to 4, by default."),
    ] = None,
    home: Annotated[Path | None, typer.Option(metavar="DIR", help="State directory; COVE_HOME by default.")] = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The key; COVE_API_KEY, or one that is made, by default.")
    ] = None,
    insecure_no_key: Annotated[
        bool | None, typer.Option("--insecure-no-key", help="Let in everybody on this machine.")
    ] = None,
    warm: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Sandboxes that are kept ready; none by default.")
    ] = None,
    on_stop: Annotated[
        OnStop | None, typer.Option(help="What becomes of sandboxes when the server stops; leave by default.")
    ] = None,
    unlimited: Annotated[
        bool, typer.Option("--unlimited", help="No limits for sandboxes but those of the file and of clients.")
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Be a node of the Ray that runs here: its address, or auto to find it."),
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="What lines about the server look like; human by default.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file with these options, and what clients may do.")
    ] = None,
) -> None:
    """Serve sandboxes over HTTP until told to stop. They live on, and the next server finds them."""
    options = {
        "host": host,
        "port": port,
        "preview_port": preview_port,
        "workers": workers,
        "api_key": api_key,
        "insecure_no_key": insecure_no_key,
        "warm": warm,
        "on_stop": on_stop,
        "log_format": log_format,
    }
    state = (home or default_home()).absolute()
    if config is not None and (problem := find_exposed_key(config)) is not None:
        say(problem)
    if cluster is None:
        run_server(state, load(config, options, None if unlimited else built_in_defaults(state)))
    else:
        check_ray_is_installed()
        ray = {"address": cluster}
        run_server(state, load_node(state, config, options, None, find_token(None), ray, unlimited=unlimited))


def find_exposed_key(config: Path) -> str | None:
    """Explain that a configuration file shows the server's key to other users; None where it does not. Blocks."""
    if "api_key" in read_settings(config) and config.stat().st_mode & 0o077:
        return f"others can read the key in {config}: `chmod 600 {config}`"
    return None


def run_server(state: Path, configuration: Configuration) -> None:
    """Serve until told to stop, and say what has become of the sandboxes."""
    if (problem := find_problem(os.environ)) is not None:
        say(problem)
    Supervisor(state, configuration, partial(_tell, configuration)).run()
    say("stopped. " + _what_became(Directory(state), configuration.on_stop))


def _tell(configuration: Configuration, line: str) -> None:
    """The first line is where the server listens; what sandboxes get there follows it."""
    defaults = describe_defaults(configuration, find_hierarchies())
    if configuration.log_format is LogFormat.JSON:
        announce(configuration.log_format, Event.SERVING, line, defaults=defaults)
        return
    with suppress(OSError):  # nobody reads any more: a server outlives who started it
        print(line, defaults, sep="\n", flush=True)


def describe_defaults(configuration: Configuration, hierarchies: Hierarchies) -> str:
    """Return one line: what a sandbox gets that does not say what it wants, and what this machine cannot hold of it."""
    limits = configuration.default_limits
    each = [f"{name} {_amount(name, getattr(limits, name))}" for name in _SHOWN]
    times = [
        f"lifetime {_duration(configuration.default_lifetime)}",
        f"idle timeout {_duration(configuration.default_idle_timeout)}",
    ]
    gets = f"Each sandbox gets, unless it is told otherwise: {', '.join([*each, *times])}."
    missing = explain_missing(hierarchies, limits)
    return f"{gets} On this machine {'; '.join(missing)}." if missing else gets


def _amount(name: str, value: float | None) -> str:
    if value is None:
        return UNLIMITED
    return f"{value / (1 << 30):.1f} GiB" if name in ("memory", "disk") else f"{value:g}"


def _duration(seconds: float | None) -> str:
    return UNLIMITED if seconds is None else str(timedelta(seconds=seconds)).removesuffix(", 0:00:00")


def _what_became(directory: Directory, on_stop: OnStop) -> str:
    if on_stop is OnStop.DESTROY:
        return "Its sandboxes were destroyed."
    infos = [directory.info(record) for record in directory.list()]
    if not infos:
        return "It had no sandboxes."
    running = sum(info.status is SandboxStatus.RUNNING for info in infos)
    return f"Sandboxes left running: {running}; stopped: {len(infos) - running}. The next `cove serve` finds them."
