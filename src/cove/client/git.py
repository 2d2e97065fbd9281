"""Client of Git in a sandbox."""

from cove import api
from cove.client.handle import Handle
from cove.wire.target import Target


class Git(Handle, api.Git, target=Target.GIT):
    """Repositories inside the sandbox."""
