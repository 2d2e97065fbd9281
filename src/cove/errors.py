"""The exception hierarchy: one tree, each error with a stable code. docs/reference/errors.md shows it whole.

CoveError
├── RequestError      change the request
├── NothingStarted    nothing was started; retrying is safe
├── MayHaveRun        something may have run, or is running
└── Internal          a bug in Cove

`is_infrastructure_failure` is true of all below NothingStarted, of ConnectionLost, SandboxDestroyed and Internal, and
where a process was lost (it has no exit code): nothing that runs inside is to blame, so a harness repeats it.
"""

import errno
import os
from collections.abc import Mapping
from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "CommandFailed",
    "ConnectionLost",
    "ContextAlreadyExists",
    "ContextCrashed",
    "ContextNotFound",
    "CoveError",
    "FileError",
    "FileExists",
    "FileNotFound",
    "FileTooLarge",
    "GitAuthFailed",
    "GitBranchExists",
    "GitBranchNotFound",
    "GitConflict",
    "GitError",
    "GitFailed",
    "GitNetworkError",
    "GitNotFound",
    "GitNothingToCommit",
    "GitRejected",
    "GitTimeout",
    "Internal",
    "InterpreterNotReady",
    "IsDirectory",
    "LimitExceeded",
    "MayHaveRun",
    "MethodNotAllowed",
    "NoSpace",
    "NotDirectory",
    "NotFound",
    "NothingStarted",
    "PermissionDenied",
    "PortAlreadyExposed",
    "PortInUse",
    "PortNotExposed",
    "ProcessAlreadyExists",
    "ProcessExitedBeforeReady",
    "ProcessNotFound",
    "ProcessReadyTimeout",
    "ProcessWaitTimeout",
    "RequestError",
    "SandboxAlreadyExists",
    "SandboxDestroyed",
    "SandboxNotFound",
    "SandboxUnavailable",
    "ServiceNotResponding",
    "SessionAlreadyExists",
    "SessionNotFound",
    "SessionTerminated",
    "SpawnFailed",
    "TerminalNotFound",
    "Unauthorized",
    "Unreachable",
    "UnsupportedLanguage",
    "ValidationFailed",
]


class CoveError(Exception):
    """The base of all errors: a code, a message that says what to do, and the facts."""

    code: ClassVar[str] = "INTERNAL"
    _is_ours: bool = False

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = details

    @property
    def is_infrastructure_failure(self) -> bool:
        """Return whether Cove or the machine failed, not what runs inside: a trainer must not score this."""
        return self._is_ours


class RequestError(CoveError):
    """The request has to change before it can succeed."""


class NothingStarted(CoveError):
    """Nothing was started: trying again is safe."""

    _is_ours = True


class MayHaveRun(CoveError):
    """Something has run, or is running."""


class Internal(CoveError):
    """A bug in Cove."""

    _is_ours = True


class ValidationFailed(RequestError):
    """An argument is wrong; nothing was done."""

    code = "VALIDATION_FAILED"


class Unauthorized(RequestError):
    """The key is missing or wrong."""

    code = "UNAUTHORIZED"


class PermissionDenied(RequestError):
    """The sandbox's user may not do that, or the server does not allow it."""

    code = "PERMISSION_DENIED"


class LimitExceeded(RequestError):
    """A configured number of things is in use."""

    code = "LIMIT_EXCEEDED"


class UnsupportedLanguage(RequestError):
    """No executor speaks this language."""

    code = "UNSUPPORTED_LANGUAGE"


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


class MethodNotAllowed(RequestError):
    """A server's route exists, but not with this method."""

    code = "METHOD_NOT_ALLOWED"


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


class PortInUse(RequestError):
    """Something inside the sandbox listens on a port that its network needs."""

    code = "PORT_IN_USE"


class FileError(RequestError):
    """A file operation failed as it would have inside the sandbox."""


class FileNotFound(FileError):
    """There is no such file."""

    code = "FILE_NOT_FOUND"


class FileExists(FileError):
    """The file is already there."""

    code = "FILE_EXISTS"


class IsDirectory(FileError):
    """A file was wanted, a directory is there."""

    code = "IS_DIRECTORY"


class NotDirectory(FileError):
    """A directory was wanted, something else is there."""

    code = "NOT_DIRECTORY"


class FileTooLarge(FileError):
    """The file is larger than allowed."""

    code = "FILE_TOO_LARGE"


class NoSpace(FileError):
    """The disk, or the sandbox's share of it, is full."""

    code = "NO_SPACE"


class GitError(RequestError):
    """A command of git failed. What a clone had begun is removed."""


class GitNotFound(GitError):
    """There is no such repository, or it is not visible to this caller."""

    code = "GIT_NOT_FOUND"


class GitBranchNotFound(GitError):
    """The repository has no such branch, tag or commit."""

    code = "GIT_BRANCH_NOT_FOUND"


class GitBranchExists(GitError):
    """The repository has a branch of this name."""

    code = "GIT_BRANCH_EXISTS"


class GitConflict(GitError):
    """Changes contradict each other, or would be lost; the repository is as git left it."""

    code = "GIT_CONFLICT"


class GitRejected(GitError):
    """The remote did not take what was pushed: it has commits that are not here, or a rule of its own."""

    code = "GIT_REJECTED"


class GitNothingToCommit(GitError):
    """Nothing is staged."""

    code = "GIT_NOTHING_TO_COMMIT"


class GitAuthFailed(GitError):
    """The credentials are missing, or not accepted."""

    code = "GIT_AUTH_FAILED"


class GitNetworkError(GitError):
    """The server could not be reached from inside the sandbox."""

    code = "GIT_NETWORK_ERROR"


class GitTimeout(GitError):
    """It took too long, and was ended."""

    code = "GIT_TIMEOUT"


class GitFailed(GitError):
    """Git failed for another reason, which the message has."""

    code = "GIT_FAILED"


class SandboxUnavailable(NothingStarted):
    """This machine cannot give the sandbox that was asked for."""

    code = "SANDBOX_UNAVAILABLE"


class Unreachable(SandboxUnavailable):
    """Nobody answers at the server's address."""


class InterpreterNotReady(NothingStarted):
    """The interpreter that is needed is not there."""

    code = "INTERPRETER_NOT_READY"


class SpawnFailed(NothingStarted):
    """Cove could not start the process."""

    code = "SPAWN_FAILED"


class ConnectionLost(MayHaveRun):
    """The server, or the sandbox's runtime, was gone before the answer was there."""

    code = "CONNECTION_LOST"
    _is_ours = True


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


_BY_ERRNO: Mapping[int, type[CoveError]] = {
    errno.ENOENT: FileNotFound,
    errno.EEXIST: FileExists,
    errno.ENOTEMPTY: FileExists,
    errno.EISDIR: IsDirectory,
    errno.ENOTDIR: NotDirectory,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EROFS: PermissionDenied,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EFBIG: FileTooLarge,
    errno.ECONNREFUSED: ServiceNotResponding,
    errno.ECONNRESET: ServiceNotResponding,
    errno.EADDRNOTAVAIL: ServiceNotResponding,
    errno.EAFNOSUPPORT: ServiceNotResponding,
    errno.ENETUNREACH: ServiceNotResponding,
    errno.ETIMEDOUT: ServiceNotResponding,
}


def from_errno(number: int, subject: str) -> CoveError:
    """The one place where a kernel error becomes one of ours."""
    kind = _BY_ERRNO.get(number, ValidationFailed)
    return kind(f"{subject}: {os.strerror(number)}", errno=errno.errorcode.get(number, str(number)))
