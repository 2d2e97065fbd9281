"""Tools for the sandbox as a whole: expose_port, snapshot, restore."""

from cove.errors import PortAlreadyExposed
from cove.tools.arguments import ExposePort, MakeSnapshot, Restore
from cove.tools.conversation import Conversation
from cove.tools.result import ToolFailed, ToolResult


async def expose_port(state: Conversation, arguments: ExposePort) -> ToolResult:
    """Expose a port, or find the URL that it has."""
    ports = state.sandbox.ports
    try:
        exposed = await ports.expose(arguments.port)
    except PortAlreadyExposed:
        known = [each for each in await ports.list() if each.port == arguments.port]
        if not known:
            raise
        exposed = known[0]
    return ToolResult(text=f"Port {exposed.port} is reachable for the user at {exposed.url}")


async def make_snapshot(state: Conversation, arguments: MakeSnapshot) -> ToolResult:
    """Make a snapshot for this conversation."""
    state.check_snapshot_room()
    await state.session()
    snapshot = await state.sandbox.snapshot(labels={"made-by": "cove.tools"})
    state.snapshots[snapshot.id] = snapshot
    return ToolResult(text=f"The snapshot is {snapshot.id}. Go back to it with restore.")


async def restore(state: Conversation, arguments: Restore) -> ToolResult:
    """Go back to a snapshot of this conversation."""
    if arguments.id not in state.snapshots:
        known = ", ".join(state.snapshots) or "none yet: begin with snapshot"
        raise ToolFailed(f"there is no snapshot {arguments.id!r}; there are: {known}")
    await state.sandbox.restore(arguments.id)
    await state.after_restore()
    return ToolResult(text="The files and the shell are as they were then. Processes and notebooks have ended.")
