"""The resource is not there, is there already, is in use, or is in another state."""

from collections.abc import Sequence

from cove.errors.families import RequestError


class NotFound(RequestError):
    """There is no such thing."""

    code = "NOT_FOUND"


class SandboxNotFound(NotFound):
    """No sandbox has this id."""

    code = "SANDBOX_NOT_FOUND"


class SessionNotFound(NotFound):
    """No session has this id."""

    code = "SESSION_NOT_FOUND"


class ProcessNotFound(NotFound):
    """No process has this id."""

    code = "PROCESS_NOT_FOUND"


class TerminalNotFound(NotFound):
    """No terminal has this id."""

    code = "TERMINAL_NOT_FOUND"


class ContextNotFound(NotFound):
    """No code context has this id."""

    code = "CONTEXT_NOT_FOUND"


class PortNotExposed(NotFound):
    """The port has no preview URL."""

    code = "PORT_NOT_EXPOSED"


class SnapshotNotFound(NotFound):
    """No snapshot has this id."""

    code = "SNAPSHOT_NOT_FOUND"


class ImageNotFound(NotFound):
    """No image has this name."""

    code = "IMAGE_NOT_FOUND"


class ApiKeyNotFound(NotFound):
    """The server has no key of this name."""

    code = "API_KEY_NOT_FOUND"


class VolumeNotFound(NotFound):
    """No volume has this name."""

    code = "VOLUME_NOT_FOUND"


class MountNotFound(NotFound):
    """Nothing is mounted there."""

    code = "MOUNT_NOT_FOUND"


class BackupNotFound(NotFound):
    """No backup has this id."""

    code = "BACKUP_NOT_FOUND"


class AlreadyExists(RequestError):
    """The id is taken."""


class SandboxAlreadyExists(AlreadyExists):
    """A sandbox has this id."""

    code = "SANDBOX_ALREADY_EXISTS"


class SessionAlreadyExists(AlreadyExists):
    """A session has this id."""

    code = "SESSION_ALREADY_EXISTS"


class ProcessAlreadyExists(AlreadyExists):
    """A running or remembered process has this id."""

    code = "PROCESS_ALREADY_EXISTS"


class ContextAlreadyExists(AlreadyExists):
    """A code context has this id."""

    code = "CONTEXT_ALREADY_EXISTS"


class PortAlreadyExposed(AlreadyExists):
    """The port has a preview URL."""

    code = "PORT_ALREADY_EXPOSED"


class SnapshotAlreadyExists(AlreadyExists):
    """A snapshot has this id."""

    code = "SNAPSHOT_ALREADY_EXISTS"


class ImageAlreadyExists(AlreadyExists):
    """An image has this name."""

    code = "IMAGE_ALREADY_EXISTS"


class ApiKeyAlreadyExists(AlreadyExists):
    """A key has this name."""

    code = "API_KEY_ALREADY_EXISTS"


class VolumeAlreadyExists(AlreadyExists):
    """A volume has this name."""

    code = "VOLUME_ALREADY_EXISTS"


class MountExists(AlreadyExists):
    """Something is mounted there."""

    code = "MOUNT_EXISTS"


class InUse(RequestError):
    """Something else holds it: end that first."""


class PortInUse(InUse):
    """Something inside the sandbox listens on a port that its network needs."""

    code = "PORT_IN_USE"


class SnapshotInUse(InUse):
    """A sandbox or another snapshot stands on this snapshot."""

    code = "SNAPSHOT_IN_USE"


class ImageInUse(InUse):
    """A sandbox or a snapshot stands on this image."""

    code = "IMAGE_IN_USE"


class VolumeInUse(InUse):
    """A sandbox has this volume mounted."""

    code = "VOLUME_IN_USE"


class ForkRefused(RequestError):
    """The code context has threads, which a copy would not have; `threads` are their names."""

    code = "FORK_REFUSED"

    def __init__(self, message: str, *, threads: Sequence[str] = ()) -> None:
        super().__init__(message, threads=list(threads))
        self.threads = list(threads)


class SandboxStopped(RequestError):
    """The sandbox was stopped; nothing was started. Call `start()` first."""

    code = "SANDBOX_STOPPED"


class SandboxPaused(RequestError):
    """The sandbox is paused and does not wake by itself; nothing was started. Call `resume()` first."""

    code = "SANDBOX_PAUSED"


class TransactionOpen(RequestError):
    """The sandbox has a transaction open: commit it or roll it back first."""

    code = "TRANSACTION_OPEN"
