"""Cove: a Linux computer that an AI agent, or any program, can use safely."""

from importlib import import_module
from typing import TYPE_CHECKING

from cove.api.provider import Provider, register_embedded, register_remote

if TYPE_CHECKING:
    from cove.api import AsyncSandbox
    from cove.blocking import Sandbox
    from cove.errors import (
        AlreadyExists,
        CommandFailed,
        ConnectionLost,
        ContextAlreadyExists,
        ContextCrashed,
        ContextNotFound,
        CoveError,
        FileError,
        FileExists,
        FileNotFound,
        FileTooLarge,
        GitAuthFailed,
        GitBranchNotFound,
        GitError,
        GitFailed,
        GitNetworkError,
        GitNotFound,
        GitTimeout,
        Internal,
        InterpreterNotReady,
        IsDirectory,
        LimitExceeded,
        MayHaveRun,
        MethodNotAllowed,
        NoSpace,
        NotDirectory,
        NotFound,
        NothingStarted,
        PermissionDenied,
        PortAlreadyExposed,
        PortNotExposed,
        ProcessAlreadyExists,
        ProcessExitedBeforeReady,
        ProcessNotFound,
        ProcessReadyTimeout,
        ProcessWaitTimeout,
        RequestError,
        SandboxAlreadyExists,
        SandboxDestroyed,
        SandboxNotFound,
        SandboxUnavailable,
        ServiceNotResponding,
        SessionAlreadyExists,
        SessionNotFound,
        SessionTerminated,
        SpawnFailed,
        TerminalNotFound,
        Unauthorized,
        UnsupportedLanguage,
        ValidationFailed,
    )
    from cove.model import (
        Changes,
        ChangesStatus,
        CodeContextInfo,
        CodeError,
        CodeEvent,
        Display,
        Done,
        ExecResult,
        Execution,
        Exit,
        ExposedPort,
        Failure,
        FileEvent,
        FileEventKind,
        FileInfo,
        FileKind,
        Gap,
        GitClone,
        Isolation,
        Limits,
        LogEvent,
        LogMatch,
        Mount,
        Network,
        Outcome,
        Output,
        ProcessExit,
        ProcessStatus,
        Ready,
        Result,
        SandboxInfo,
        SandboxSpec,
        SandboxStatus,
        SearchMatch,
        SessionInfo,
        SessionStatus,
        TerminalEvent,
        TerminalInfo,
        Text,
        TreeKill,
        Usage,
    )

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "AsyncSandbox",
    "Changes",
    "ChangesStatus",
    "CodeContextInfo",
    "CodeError",
    "CodeEvent",
    "CommandFailed",
    "ConnectionLost",
    "ContextAlreadyExists",
    "ContextCrashed",
    "ContextNotFound",
    "CoveError",
    "Display",
    "Done",
    "ExecResult",
    "Execution",
    "Exit",
    "ExposedPort",
    "Failure",
    "FileError",
    "FileEvent",
    "FileEventKind",
    "FileExists",
    "FileInfo",
    "FileKind",
    "FileNotFound",
    "FileTooLarge",
    "Gap",
    "GitAuthFailed",
    "GitBranchNotFound",
    "GitClone",
    "GitError",
    "GitFailed",
    "GitNetworkError",
    "GitNotFound",
    "GitTimeout",
    "Internal",
    "InterpreterNotReady",
    "IsDirectory",
    "Isolation",
    "LimitExceeded",
    "Limits",
    "LogEvent",
    "LogMatch",
    "MayHaveRun",
    "MethodNotAllowed",
    "Mount",
    "Network",
    "NoSpace",
    "NotDirectory",
    "NotFound",
    "NothingStarted",
    "Outcome",
    "Output",
    "PermissionDenied",
    "PortAlreadyExposed",
    "PortNotExposed",
    "ProcessAlreadyExists",
    "ProcessExit",
    "ProcessExitedBeforeReady",
    "ProcessNotFound",
    "ProcessReadyTimeout",
    "ProcessStatus",
    "ProcessWaitTimeout",
    "Ready",
    "RequestError",
    "Result",
    "Sandbox",
    "SandboxAlreadyExists",
    "SandboxDestroyed",
    "SandboxInfo",
    "SandboxNotFound",
    "SandboxSpec",
    "SandboxStatus",
    "SandboxUnavailable",
    "SearchMatch",
    "ServiceNotResponding",
    "SessionAlreadyExists",
    "SessionInfo",
    "SessionNotFound",
    "SessionStatus",
    "SessionTerminated",
    "SpawnFailed",
    "TerminalEvent",
    "TerminalInfo",
    "TerminalNotFound",
    "Text",
    "TreeKill",
    "Unauthorized",
    "UnsupportedLanguage",
    "Usage",
    "ValidationFailed",
    "__version__",
]


# Where the public names are, the light ones first.
_MODULES = ("cove.errors", "cove.model", "cove.api", "cove.blocking")
_SANDBOXES = ("AsyncSandbox", "Sandbox")

if not TYPE_CHECKING:  # a type checker would otherwise believe in every name

    def __getattr__(name: str) -> object:
        """A public name, imported when it is first used: `import cove` alone takes no time."""
        if name not in __all__:
            raise AttributeError(f"module 'cove' has no attribute {name!r}")
        if name in _SANDBOXES:
            _make_embedded()  # here rather than in the event loop that makes the first sandbox
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
        raise AssertionError(f"{name} is nowhere")


def _make_embedded() -> Provider:
    from cove.runtime.embedded import EMBEDDED  # most of the time that importing Cove would take

    return EMBEDDED


def _make_remote(url: str, api_key: str | None) -> Provider:
    from cove.client.remote import Remote  # as much again

    return Remote(url, api_key)


register_embedded(_make_embedded)
register_remote(_make_remote)
