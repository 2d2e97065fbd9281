"""Request bodies of operations. Fields have the names and meanings of the arguments in `cove.api`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self

import msgspec

from cove import api
from cove.core.command import check_environment, check_timeout
from cove.core.identifier import check_sandbox_id
from cove.errors import ValidationFailed
from cove.model import Network, NetworkPolicy, SandboxSpec

Environment = dict[str, str | None]
Command = str | list[str]
Seconds = float | None

_MOST_PATTERN = 1 << 16


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The arguments of one call: made `of` them by a client, and given back as `arguments` by a server."""

    @classmethod
    def of(cls, **arguments: object) -> Self:
        """Make the request of a call with these arguments; ValidationFailed for what cannot travel."""
        for name in arguments.keys() & _CHECKS.keys():
            arguments[name] = _CHECKS[name](arguments[name])
        try:
            return msgspec.convert(arguments, cls)
        except msgspec.ValidationError as error:
            raise ValidationFailed(str(error)) from None

    def arguments(self) -> dict[str, object]:
        """Return the fields as keyword arguments of the method that is called."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @property
    def makes_new(self) -> bool:
        """Return whether what the call makes is its caller's alone: others may use what was there before."""
        return True


def _environment(env: Mapping[str, str | None] | None) -> Environment | None:
    return None if env is None else {**check_environment(env)}


def _words(command: object) -> object:
    if command is None or isinstance(command, str):
        return command
    if not isinstance(command, Sequence) or isinstance(command, bytes):
        raise ValidationFailed(f"command must be a string or a list of strings, not {type(command).__name__}")
    return list(command)


def _grace(seconds: float) -> float:
    checked = check_timeout(seconds)
    if checked is None:
        raise ValidationFailed("grace must be a number of seconds")
    return checked


def _texts(texts: object) -> object:
    if texts is None:
        return None
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ValidationFailed(f"a list of strings is needed, not {texts!r}")
    return list(texts)


# How an argument of that name is written, whichever call has it.
_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "command": _words,
    "shell": _words,
    "env": _environment,
    "timeout": check_timeout,
    "grace": _grace,
    "paths": _texts,
    "include": _texts,
    "exclude": _texts,
}


class Nothing(Request, frozen=True):
    """No arguments but those in the path."""


class CreateSandbox(Request, frozen=True):
    """Without an id one is made. With `exist_ok` a sandbox that has the id already is given back as it is."""

    id: str | None = None
    spec: SandboxSpec = SandboxSpec()
    exist_ok: bool = False

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        id = arguments["id"]
        return super().of(**{**arguments, "id": None if id is None else check_sandbox_id(id)})

    @property
    def makes_new(self) -> bool:
        return not self.exist_ok or self.id is None


class SetEnv(Request, frozen=True):
    """Variables to export; None unsets."""

    env: Environment


class SetNetwork(Request, frozen=True):
    """A mode, or a policy."""

    network: Network | NetworkPolicy


class NetworkLog(Request, frozen=True):
    """From which cursor on; with `follow`, what comes later too."""

    since: str | None = None
    follow: bool = False


class Exec(Request, frozen=True):
    """One command. Standard input is `stdin`, or `stdin_base64` for bytes that are not text."""

    command: Command
    cwd: str | None = None
    env: Environment | None = None
    timeout: Seconds = None
    stdin: str | None = None
    stdin_base64: bytes | None = None
    max_output: int | None = None

    @classmethod
    def of(cls, **arguments: object) -> Self:
        if not isinstance(stdin := arguments.get("stdin"), str | None):
            arguments["stdin_base64"], arguments["stdin"] = stdin, None
        return super().of(**arguments)

    def arguments(self) -> dict[str, object]:
        if self.stdin is not None and self.stdin_base64 is not None:
            raise ValidationFailed("give stdin or stdin_base64, not both")
        return {
            "command": self.command,
            "cwd": self.cwd,
            "env": self.env,
            "timeout": self.timeout,
            "stdin": self.stdin if self.stdin_base64 is None else self.stdin_base64,
            "max_output": self.max_output,
        }


class StartProcess(Request, frozen=True):
    """A process that lives on its own."""

    command: Command
    id: str | None = None
    cwd: str | None = None
    env: Environment | None = None
    timeout: Seconds = None
    stdin: bool = False
    keep: bool = True
    lossless: bool = False


class Kill(Request, frozen=True):
    """A signal by name or number."""

    signal: int | str = "TERM"


class Terminate(Request, frozen=True):
    """TERM, and KILL after `grace` seconds."""

    grace: float = 5.0


class Waiting(Request, frozen=True):
    """A request that only waits: the timeout ends the wait, and nothing else."""

    timeout: Seconds = None


class Wait(Waiting, frozen=True):
    """The limit of a wait; the process runs on."""


class Logs(Request, frozen=True):
    """From which cursor on."""

    since: str | None = None
    follow: bool = True
    lossless: bool = False


class WaitForLog(Waiting, frozen=True, kw_only=True):
    """A text or, with `is_expression`, a regular expression with the flags of Python's `re`."""

    pattern: str
    is_expression: bool = False
    flags: int = 0

    @classmethod
    def of(cls, **arguments: object) -> Self:
        if isinstance(pattern := arguments["pattern"], re.Pattern):
            flags = pattern.flags & ~re.UNICODE
            arguments |= {"pattern": pattern.pattern, "is_expression": True, "flags": flags}
        return super().of(**arguments)

    def arguments(self) -> dict[str, object]:
        if not self.is_expression:
            return {"pattern": self.pattern, "timeout": self.timeout}
        if len(self.pattern) > _MOST_PATTERN:
            raise ValidationFailed(f"pattern is longer than {_MOST_PATTERN} characters")
        try:
            return {"pattern": re.compile(self.pattern, self.flags & ~re.DEBUG), "timeout": self.timeout}
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise ValidationFailed(f"the pattern is not a regular expression: {error}") from None


class WaitForPort(Waiting, frozen=True, kw_only=True):
    """A readiness check of a port."""

    port: int
    mode: Literal["http", "tcp"] = "http"
    path: str = "/"
    status: tuple[int, int] = (200, 399)


class CreateSession(Request, frozen=True):
    """`timeout` is the default for its commands."""

    id: str | None = None
    cwd: str | None = None
    env: Environment | None = None
    timeout: Seconds = None


class OpenTerminal(Request, frozen=True):
    """Get or create."""

    id: str | None = None
    shell: Command | None = None
    cwd: str | None = None
    env: Environment | None = None
    cols: int = 80
    rows: int = 24

    @property
    def makes_new(self) -> bool:
        return self.id is None


class Resize(Request, frozen=True):
    """1 to 1000 each way."""

    cols: int
    rows: int


class Connect(Request, frozen=True):
    """The cursor of a viewer: what it has seen already."""

    since: str | None = None
    lossless: bool = False


class CreateCodeContext(Request, frozen=True):
    """`timeout` is the default for its runs."""

    language: str = "python"
    id: str | None = None
    cwd: str | None = None
    env: Environment | None = None
    timeout: Seconds = None


class RunInContext(Request, frozen=True):
    """Code for a context."""

    code: str
    timeout: Seconds = None


class RunCode(Request, frozen=True):
    """Code for a context or, without one, for a clean executor."""

    code: str
    context: str | None = None
    language: str = "python"
    timeout: Seconds = None

    @classmethod
    def of(cls, **arguments: object) -> Self:
        if isinstance(context := arguments.get("context"), api.CodeContext):
            arguments["context"] = context.id
        return super().of(**arguments)


class FilePath(Request, frozen=True):
    """One file."""

    path: str


class ReadFile(Request, frozen=True):
    """A file, or the bytes from `start` up to, not including, `end`."""

    path: str
    start: int = 0
    end: int | None = None


class WriteFile(Request, frozen=True):
    """The file that the content goes to."""

    path: str
    mode: int | None = None


class MakeDirectory(Request, frozen=True):
    """With `parents` those above it too."""

    path: str
    parents: bool = True


class Rename(Request, frozen=True):
    """On one file system."""

    old: str
    new: str


class Transfer(Request, frozen=True):
    """As `mv` and `cp -r`."""

    source: str
    destination: str


class ListFiles(Request, frozen=True):
    """The directory to list."""

    path: str = "."
    recursive: bool = False
    hidden: bool = True


class ChangeMode(Request, frozen=True):
    """Permission bits."""

    path: str
    mode: int


class Glob(Request, frozen=True):
    """The pattern that paths below `root` must match."""

    pattern: str
    root: str = "."


class Search(Request, frozen=True):
    """The regular expression that lines must match."""

    pattern: str
    path: str = "."
    glob: str | None = None
    limit: int = 1000


class Replace(Request, frozen=True):
    """Exact text."""

    path: str
    old: str
    new: str
    count: int | None = 1


class Watch(Request, frozen=True):
    """A tree or a file."""

    path: str = "."
    recursive: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = (".git", "node_modules")


class CheckChanges(Watch, frozen=True):
    """The version to compare with."""

    since: str | None = None


class CloneRepository(Request, frozen=True):
    """The token is given to the URL's own host only."""

    url: str
    path: str | None = None
    branch: str | None = None
    depth: int | None = None
    timeout: Seconds = None
    token: str | None = None


class Repository(Request, frozen=True):
    """A directory of a repository."""

    path: str = "."
    timeout: Seconds = None


class DiffRepository(Repository, frozen=True):
    """Without `paths` everything is compared."""

    paths: tuple[str, ...] = ()
    base: str | None = None
    staged: bool = False
    max_bytes: int = 1 << 20


class AddToRepository(Repository, frozen=True):
    """Without `paths` everything is staged."""

    paths: list[str] | None = None


class Commit(Repository, frozen=True, kw_only=True):
    """With `all` every change of tracked files."""

    message: str
    all: bool = False
    allow_empty: bool = False
    author: str | None = None


class Push(Repository, frozen=True):
    """The token is given to the host of `url` only."""

    remote: str = "origin"
    branch: str | None = None
    force: bool = False
    set_upstream: bool = False
    token: str | None = None
    url: str | None = None


class Pull(Repository, frozen=True):
    """The token is given to the host of `url` only."""

    remote: str | None = None
    branch: str | None = None
    rebase: bool = False
    token: str | None = None
    url: str | None = None


class ChangeBranch(Repository, frozen=True, kw_only=True):
    """Make a branch, or delete it."""

    name: str
    start: str | None = None
    delete: bool = False
    force: bool = False


class Checkout(Repository, frozen=True, kw_only=True):
    """A branch, a tag or a commit; with `create` a new branch."""

    ref: str
    create: bool = False
    force: bool = False


class ConnectPort(Request, frozen=True):
    """With a token: only while the port is exposed with it."""

    token: str | None = None


class ExposePort(Request, frozen=True):
    """Without a token one is made."""

    port: int
    name: str | None = None
    token: str | None = None
