"""Client of the backups of a sandbox."""

from cove import api
from cove.client.handle import Handle
from cove.wire.target import Target


class Backups(Handle, api.Backups, target=Target.BACKUPS):
    """Backups are kept where the sandbox is."""
