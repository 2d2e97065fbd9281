"""`cove serve`: many sandboxes for many clients, over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from cove.cli.descriptors import say
from cove.model import SandboxStatus
from cove.runtime.home import default_home
from cove.server.configuration import OnStop, load
from cove.server.sandboxes.directory import Directory
from cove.server.supervisor import Supervisor


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
    }
    configuration = load(config, options)
    state = (home or default_home()).absolute()
    Supervisor(state, configuration, _tell).run()
    say("stopped. " + _what_became(Directory(state), configuration.on_stop))


def _tell(line: str) -> None:
    print(line, flush=True)


def _what_became(directory: Directory, on_stop: OnStop) -> str:
    if on_stop is OnStop.DESTROY:
        return "Its sandboxes were destroyed."
    infos = [directory.info(record) for record in directory.list()]
    if not infos:
        return "It had no sandboxes."
    running = sum(info.status is SandboxStatus.RUNNING for info in infos)
    return f"Sandboxes left running: {running}; stopped: {len(infos) - running}. The next `cove serve` finds them."
