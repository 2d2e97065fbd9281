"""Errors of execution: nothing was started, or something may have run."""

from cove.errors.families import MayHaveRun, NothingStarted


class SandboxUnavailable(NothingStarted):
    """This machine cannot give the sandbox that was asked for."""

    code = "SANDBOX_UNAVAILABLE"


class Unreachable(SandboxUnavailable):
    """Nobody answers at the server's address."""


class NodeUnavailable(SandboxUnavailable):
    """The node that has the sandbox does not answer; `since` says from when on."""

    code = "NODE_UNAVAILABLE"

    def __init__(self, message: str, *, node: str = "", since: str | None = None) -> None:
        super().__init__(message, node=node, since=since)
        self.node = node
        self.since = since


class NoCapacity(SandboxUnavailable):
    """No node of the cluster has room for it now."""

    code = "NO_CAPACITY"


class PlacementUnavailable(SandboxUnavailable):
    """Nobody can say now where it may be made, or who has its name."""

    code = "PLACEMENT_UNAVAILABLE"


class InterpreterNotReady(NothingStarted):
    """The interpreter that is needed is not there."""

    code = "INTERPRETER_NOT_READY"


class SpawnFailed(NothingStarted):
    """Cove could not start the process."""

    code = "SPAWN_FAILED"


class SecretUnavailable(NothingStarted):
    """The source of a secret does not give it; nothing was sent without it."""

    code = "SECRET_UNAVAILABLE"


class ConnectionLost(MayHaveRun):
    """The server, or the sandbox's runtime, was gone before the answer was there."""

    code = "CONNECTION_LOST"
    _is_ours = True


class NodeLost(ConnectionLost):
    """The node that has the sandbox was gone before the answer was there."""

    code = "NODE_LOST"

    def __init__(self, message: str, *, node: str = "") -> None:
        super().__init__(message, node=node)
        self.node = node


class SandboxDestroyed(MayHaveRun):
    """The sandbox is gone."""

    code = "SANDBOX_DESTROYED"
    _is_ours = True


class SessionTerminated(MayHaveRun):
    """The session's shell has ended."""

    code = "SESSION_TERMINATED"

    def __init__(self, message: str, *, exit_code: int | None = None, output: str = "") -> None:
        super().__init__(message, exit_code=exit_code, output=output)
        self.exit_code = exit_code
        self.output = output
        self._is_ours = exit_code is None


class ContextCrashed(MayHaveRun):
    """The code context's executor has ended."""

    code = "CONTEXT_CRASHED"

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(message, exit_code=exit_code)
        self.exit_code = exit_code
        self._is_ours = exit_code is None


class CommandFailed(MayHaveRun):
    """A command did not end with 0; raised only by `check()`."""

    code = "COMMAND_FAILED"

    def __init__(self, message: str, *, outcome: str, exit_code: int | None) -> None:
        super().__init__(message, outcome=outcome, exit_code=exit_code)
        self.outcome = outcome
        self.exit_code = exit_code
        self._is_ours = outcome == "lost"


class ProcessReadyTimeout(MayHaveRun):
    """The process was not ready in time; it runs on."""

    code = "PROCESS_READY_TIMEOUT"


class ProcessWaitTimeout(MayHaveRun):
    """The process did not end in time; it runs on."""

    code = "PROCESS_WAIT_TIMEOUT"


class ProcessExitedBeforeReady(MayHaveRun):
    """The process ended before it was ready; `is_ending`: how, is not known yet."""

    code = "PROCESS_EXITED_BEFORE_READY"

    def __init__(self, message: str, *, exit_code: int | None, output: str = "", is_ending: bool = False) -> None:
        super().__init__(message, exit_code=exit_code, output=output, **({"is_ending": True} if is_ending else {}))
        self.exit_code = exit_code
        self.output = output
        self.is_ending = is_ending
        self._is_ours = exit_code is None and not is_ending


class ServiceNotResponding(MayHaveRun):
    """Nothing answers on that port inside the sandbox."""

    code = "SERVICE_NOT_RESPONDING"
