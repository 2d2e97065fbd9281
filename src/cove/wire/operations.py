"""The table of operations: how each is called over HTTP, and which method of `cove.api` it is.

The client makes its requests from this table, the runtime finds by it what to call, and the OpenAPI document is
made from it. Paths are below `/v1/sandboxes/{sandbox}`; those of `GATEWAY` stand for themselves and are answered by
the gateway, which knows all sandboxes. Fields of a request that are not in the path travel as JSON, or in the query
where the method is GET or DELETE or the body is content.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from cove.model import (
    Changes,
    CodeContextInfo,
    Execution,
    ExposedPort,
    FileEvent,
    FileInfo,
    GitBranch,
    GitClone,
    GitHead,
    GitStatus,
    LogMatch,
    Output,
    ProcessExit,
    SandboxInfo,
    SearchMatch,
    SessionInfo,
    TerminalInfo,
    Usage,
)
from cove.wire import replies, requests
from cove.wire.replies import NOTHING, Reply, plain
from cove.wire.requests import Nothing

SANDBOXES: Final = "/v1/sandboxes"
ROOT: Final = f"{SANDBOXES}/{{sandbox}}"

Q = TypeVar("Q", bound=requests.Request, covariant=True)
W = TypeVar("W", covariant=True)


class Target(Enum):
    """The object whose method an operation is."""

    GATEWAY = auto()
    SANDBOX = auto()
    PROCESS = auto()
    SESSION = auto()
    TERMINAL = auto()
    CONTEXT = auto()
    FILES = auto()
    GIT = auto()
    PORTS = auto()


class Form(Enum):
    """The content that travels besides the request."""

    VALUE = auto()  # JSON comes back
    EVENTS = auto()  # a stream of events comes back
    CONTENT = auto()  # bytes come back
    UPLOAD = auto()  # bytes go there, and are taken whole
    STREAM = auto()  # bytes go there, and are taken as they come
    SOCKET = auto()  # bytes both ways


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Q, W]):
    """One row of the table, generic in its request and in its answer, or in one event of it.

    What answers NOTHING answers 204. A `repeatable` one is idempotent: it may be retried. One of the gateway that
    `reaches_runtime` is answered by the runtime where that runs.
    """

    name: str
    verb: str
    path: str
    target: Target
    method: str
    summary: str
    request: type[Q]
    answer: Reply[W]
    form: Form
    repeatable: bool
    reaches_runtime: bool

    @property
    def reply(self) -> type[W] | None:
        """The type of the answer on the wire; None for one without content."""
        return None if self.answer is NOTHING else self.answer.type

    @property
    def has_request(self) -> bool:
        """Return whether it takes arguments besides those in its path."""
        return self.request is not Nothing

    @property
    def takes_content(self) -> bool:
        """Return whether the body is content."""
        return self.form in (Form.UPLOAD, Form.STREAM)

    @property
    def has_query(self) -> bool:
        """Return whether the request's fields stand in the query."""
        return self.verb in ("GET", "DELETE") or self.takes_content

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in the path, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))


AnyOperation = Operation[requests.Request, object]


def _operation(
    name: str,
    route: str,
    target: Target,
    method: str,
    summary: str,
    request: type[Q],
    answer: Reply[W],
    form: Form = Form.VALUE,
    *,
    repeatable: bool = False,
    reaches_runtime: bool = False,
) -> Operation[Q, W]:
    verb, path = route.split(" ")
    return Operation(
        name=name,
        verb=verb,
        path=path,
        target=target,
        method=method,
        summary=summary,
        request=request,
        answer=answer,
        form=form,
        repeatable=repeatable or verb == "GET",
        reaches_runtime=reaches_runtime,
    )


_G, _S, _P, _H = Target.GATEWAY, Target.SANDBOX, Target.PROCESS, Target.SESSION
_T, _C, _F, _V = Target.TERMINAL, Target.CONTEXT, Target.FILES, Target.GIT

# fmt: off
CREATE = _operation("create_sandbox", f"POST {SANDBOXES}", _G, "create", "Make a sandbox", requests.CreateSandbox, plain(SandboxInfo))
LIST = _operation("list_sandboxes", f"GET {SANDBOXES}", _G, "list", "All sandboxes", Nothing, plain(list[SandboxInfo]))
INFO = _operation("get_sandbox", f"GET {ROOT}", _G, "info", "What a sandbox is", Nothing, plain(SandboxInfo), reaches_runtime=True)
DESTROY = _operation("destroy_sandbox", f"DELETE {ROOT}", _G, "destroy", "End a sandbox and remove all it has", Nothing, NOTHING)
RESTART = _operation("restart_sandbox", f"POST {ROOT}/restart", _G, "restart", "End what runs, start again on the same files", Nothing, NOTHING, reaches_runtime=True)

USAGE = _operation("get_usage", "GET /usage", _S, "usage", "What a sandbox uses of the machine", Nothing, plain(Usage))
EXEC = _operation("exec", "POST /exec", _S, "exec", "Run one command", requests.Exec, replies.EXEC)
SET_ENV = _operation("set_env", "PATCH /env", _S, "set_env", "Change the environment of what starts later", requests.SetEnv, NOTHING)

START_PROCESS = _operation("start_process", "POST /processes", _S, "start_process", "Start a process", requests.StartProcess, replies.PROCESS)
LIST_PROCESSES = _operation("list_processes", "GET /processes", _S, "list_processes", "All running and remembered processes", Nothing, replies.PROCESSES)
KILL_ALL_PROCESSES = _operation("kill_all_processes", "POST /kill_all_processes", _S, "kill_all_processes", "Signal every process", requests.Kill, replies.COUNT)
CLEANUP_PROCESSES = _operation("cleanup_processes", "POST /cleanup_processes", _S, "cleanup_processes", "Forget the ended processes", Nothing, replies.COUNT)
GET_PROCESS = _operation("get_process", "GET /processes/{process}", _P, "refresh", "One process", Nothing, replies.PROCESS)
KILL_PROCESS = _operation("kill_process", "POST /processes/{process}/kill", _P, "kill", "Signal the whole tree of a process", requests.Kill, replies.PROCESS)
TERMINATE_PROCESS = _operation("terminate_process", "POST /processes/{process}/terminate", _P, "terminate", "End the whole tree of a process", requests.Terminate, replies.PROCESS)
WAIT_PROCESS = _operation("wait_process", "POST /processes/{process}/wait", _P, "wait", "Wait for its end", requests.Wait, plain(ProcessExit), repeatable=True)
PROCESS_OUTPUT = _operation("process_output", "POST /processes/{process}/output", _P, "output", "Wait for its end and give what it printed", requests.Wait, replies.EXEC, repeatable=True)
PROCESS_LOGS = _operation("process_logs", "GET /processes/{process}/logs", _P, "logs", "What it prints, from a cursor on", requests.Logs, plain(Output), Form.EVENTS)
WAIT_FOR_LOG = _operation("wait_for_log", "POST /processes/{process}/wait_for_log", _P, "wait_for_log", "Wait for a line", requests.WaitForLog, plain(LogMatch), repeatable=True)
WAIT_FOR_PORT = _operation("wait_for_port", "POST /processes/{process}/wait_for_port", _P, "wait_for_port", "Wait until a port answers", requests.WaitForPort, NOTHING, repeatable=True)
WRITE_STDIN = _operation("write_stdin", "POST /processes/{process}/stdin", _P, "write_stdin", "Write to its standard input", Nothing, NOTHING, Form.UPLOAD)
CLOSE_STDIN = _operation("close_stdin", "DELETE /processes/{process}/stdin", _P, "close_stdin", "End its standard input", Nothing, NOTHING)

CREATE_SESSION = _operation("create_session", "POST /sessions", _S, "create_session", "Start a shell with state", requests.CreateSession, replies.SESSION)
LIST_SESSIONS = _operation("list_sessions", "GET /sessions", _S, "list_sessions", "All sessions", Nothing, plain(list[SessionInfo]))
GET_SESSION = _operation("get_session", "GET /sessions/{session}", _S, "get_session", "Whether a session is there", Nothing, replies.SESSION)
DELETE_SESSION = _operation("delete_session", "DELETE /sessions/{session}", _S, "delete_session", "End a session and all it started", Nothing, NOTHING)
SESSION_EXEC = _operation("session_exec", "POST /sessions/{session}/exec", _H, "exec", "Run one command in the shell", requests.Exec, replies.EXEC)
SESSION_START_PROCESS = _operation("session_start_process", "POST /sessions/{session}/processes", _H, "start_process", "Start a process from a copy of the shell's state", requests.StartProcess, replies.PROCESS)
SESSION_SET_ENV = _operation("session_set_env", "PATCH /sessions/{session}/env", _H, "set_env", "Export variables in the shell", requests.SetEnv, NOTHING)
SESSION_ENV = _operation("session_env", "GET /sessions/{session}/env", _H, "env", "The exported variables", Nothing, replies.ENV)
SESSION_CWD = _operation("session_cwd", "GET /sessions/{session}/cwd", _H, "cwd", "The working directory", Nothing, replies.CWD)

TERMINAL = _operation("terminal", "POST /terminals", _S, "terminal", "Get or create a terminal", requests.OpenTerminal, replies.TERMINAL)
LIST_TERMINALS = _operation("list_terminals", "GET /terminals", _S, "list_terminals", "All terminals", Nothing, plain(list[TerminalInfo]))
GET_TERMINAL = _operation("get_terminal", "GET /terminals/{terminal}", _S, "get_terminal", "One terminal", Nothing, replies.TERMINAL)
DESTROY_TERMINAL = _operation("destroy_terminal", "DELETE /terminals/{terminal}", _T, "destroy", "End a terminal and all it started", Nothing, NOTHING)
RESIZE_TERMINAL = _operation("resize_terminal", "POST /terminals/{terminal}/resize", _T, "resize", "Change its size", requests.Resize, NOTHING)
CONNECT_TERMINAL = _operation("connect_terminal", "GET /terminals/{terminal}/connect", _T, "connect", "View it and type: a WebSocket", requests.Connect, NOTHING, Form.SOCKET)

CREATE_CONTEXT = _operation("create_code_context", "POST /contexts", _S, "create_code_context", "Start an executor with state", requests.CreateCodeContext, replies.CONTEXT)
LIST_CONTEXTS = _operation("list_code_contexts", "GET /contexts", _S, "list_code_contexts", "All code contexts", Nothing, plain(list[CodeContextInfo]))
GET_CONTEXT = _operation("get_code_context", "GET /contexts/{context}", _S, "get_code_context", "One code context", Nothing, replies.CONTEXT)
DELETE_CONTEXT = _operation("delete_code_context", "DELETE /contexts/{context}", _S, "delete_code_context", "End an executor and all it started", Nothing, NOTHING)
RUN_IN_CONTEXT = _operation("run_in_context", "POST /contexts/{context}/run", _C, "run", "Run code", requests.RunInContext, plain(Execution))
STREAM_IN_CONTEXT = _operation("stream_in_context", "POST /contexts/{context}/stream", _C, "stream", "Run code, as events", requests.RunInContext, replies.CODE_EVENT, Form.EVENTS)
INTERRUPT_CONTEXT = _operation("interrupt_context", "POST /contexts/{context}/interrupt", _C, "interrupt", "Interrupt what runs", Nothing, NOTHING)
RUN_CODE = _operation("run_code", "POST /run_code", _S, "run_code", "Run code in a context or a clean executor", requests.RunCode, plain(Execution))
STREAM_CODE = _operation("stream_code", "POST /stream_code", _S, "stream_code", "The same, as events", requests.RunCode, replies.CODE_EVENT, Form.EVENTS)

READ_FILE = _operation("read_file", "GET /files/content", _F, "read_stream", "Read a file or a part of it", requests.ReadFile, NOTHING, Form.CONTENT)
WRITE_FILE = _operation("write_file", "PUT /files/content", _F, "write_stream", "Replace a file's content", requests.WriteFile, replies.COUNT, Form.STREAM)
APPEND_FILE = _operation("append_file", "POST /files/append", _F, "append", "Add to the end of a file", requests.FilePath, NOTHING, Form.UPLOAD)
MAKE_DIRECTORY = _operation("make_directory", "POST /files/mkdir", _F, "mkdir", "Make a directory", requests.MakeDirectory, NOTHING)
REMOVE_FILE = _operation("remove_file", "POST /files/remove", _F, "remove", "Remove a file", requests.FilePath, NOTHING)
REMOVE_TREE = _operation("remove_tree", "POST /files/remove_tree", _F, "remove_tree", "Remove a directory and all in it", requests.FilePath, NOTHING)
RENAME_FILE = _operation("rename_file", "POST /files/rename", _F, "rename", "Rename on one file system", requests.Rename, NOTHING)
MOVE_FILE = _operation("move_file", "POST /files/move", _F, "move", "Move, as mv", requests.Transfer, NOTHING)
COPY_FILE = _operation("copy_file", "POST /files/copy", _F, "copy", "Copy, as cp -r", requests.Transfer, NOTHING)
LIST_FILES = _operation("list_files", "GET /files/list", _F, "list", "What is in a directory", requests.ListFiles, plain(list[FileInfo]))
STAT_FILE = _operation("stat_file", "GET /files/stat", _F, "stat", "What stands under a name", requests.FilePath, plain(FileInfo))
FILE_EXISTS = _operation("file_exists", "GET /files/exists", _F, "exists", "Whether there is anything", requests.FilePath, replies.EXISTS)
CHANGE_MODE = _operation("change_mode", "POST /files/chmod", _F, "chmod", "Change permission bits", requests.ChangeMode, NOTHING)
GLOB_FILES = _operation("glob_files", "POST /files/glob", _F, "glob", "Which paths match", requests.Glob, plain(list[str]), repeatable=True)
SEARCH_FILES = _operation("search_files", "POST /files/search", _F, "search", "Which lines match", requests.Search, plain(list[SearchMatch]), repeatable=True)
REPLACE_TEXT = _operation("replace_text", "POST /files/replace", _F, "replace", "Exact edits", requests.Replace, replies.COUNT)
UPLOAD_TREE = _operation("upload_tree", "PUT /files/tree", _F, "write_archive", "Unpack a tar stream", requests.FilePath, NOTHING, Form.STREAM)
DOWNLOAD_TREE = _operation("download_tree", "GET /files/tree", _F, "read_archive", "A directory as a tar stream", requests.FilePath, NOTHING, Form.CONTENT)
WATCH_FILES = _operation("watch_files", "POST /files/watch", _F, "watch", "What changes", requests.Watch, plain(FileEvent), Form.EVENTS)
CHECK_CHANGES = _operation("check_changes", "POST /files/check_changes", _F, "check_changes", "Whether a tree has changed", requests.CheckChanges, plain(Changes), repeatable=True)

CLONE = _operation("clone_repository", "POST /git/clone", _V, "clone", "Clone a repository", requests.CloneRepository, plain(GitClone))
GIT_STATUS = _operation("git_status", "GET /git/status", _V, "status", "What is checked out, and which files differ", requests.Repository, plain(GitStatus))
GIT_DIFF = _operation("git_diff", "POST /git/diff", _V, "diff", "Changes as a patch", requests.DiffRepository, replies.DIFF, repeatable=True)
GIT_ADD = _operation("git_add", "POST /git/add", _V, "add", "Stage files", requests.AddToRepository, NOTHING)
GIT_COMMIT = _operation("git_commit", "POST /git/commit", _V, "commit", "Record what is staged", requests.Commit, plain(GitHead))
GIT_PUSH = _operation("git_push", "POST /git/push", _V, "push", "Send a branch to a remote", requests.Push, NOTHING)
GIT_PULL = _operation("git_pull", "POST /git/pull", _V, "pull", "Fetch and merge", requests.Pull, plain(GitHead))
GIT_BRANCH = _operation("git_branch", "POST /git/branch", _V, "branch", "Make or delete a branch", requests.ChangeBranch, NOTHING)
GIT_BRANCHES = _operation("git_branches", "GET /git/branches", _V, "branches", "The local branches", requests.Repository, plain(list[GitBranch]))
GIT_CHECKOUT = _operation("git_checkout", "POST /git/checkout", _V, "checkout", "Switch to a branch, a tag or a commit", requests.Checkout, plain(GitHead))

EXPOSE_PORT = _operation("expose_port", "POST /ports", Target.PORTS, "expose", "Let others reach a port by a URL", requests.ExposePort, plain(ExposedPort))
LIST_PORTS = _operation("list_ports", "GET /ports", Target.PORTS, "list", "All exposed ports", Nothing, plain(list[ExposedPort]))
UNEXPOSE_PORT = _operation("unexpose_port", "DELETE /ports/{port}", Target.PORTS, "unexpose", "Its URL leads nowhere from here on", Nothing, NOTHING)
CONNECT_PORT = _operation("connect_port", "GET /ports/{port}/connect", Target.PORTS, "connect", "Bytes to and from a port: an upgrade to tcp", requests.ConnectPort, NOTHING, Form.SOCKET)
# fmt: on

OPERATIONS: Final[tuple[AnyOperation, ...]] = tuple(
    value for value in dict(globals()).values() if isinstance(value, Operation)
)
