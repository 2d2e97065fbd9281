"""The table of operations: how each method of `cove.api` is called over HTTP, who answers it, and with what.

Everything else follows from a row: the client's method, the routes of the gateway and of the runtimes, what is decoded
and encoded on both sides, the OpenAPI document, and `docs/reference/http.md`. Paths of a server's operations stand for
themselves; all others are below `/v1/sandboxes/{sandbox}`. The first ids in a path name the object whose method it is,
the others are the method's first arguments. All other arguments are fields of the request: they travel as JSON, or in
the query where the method is GET or DELETE or the body is content.
"""

from typing import Final

from cove.model import (
    AnyMount,
    ApiKeyInfo,
    ApiKeyMade,
    BackupInfo,
    Changes,
    CodeContextInfo,
    DestroyedSandbox,
    Execution,
    ExposedPort,
    FileChange,
    FileInfo,
    GitBranch,
    GitClone,
    GitHead,
    GitStatus,
    ImageInfo,
    LogMatch,
    ProcessExit,
    ResetReport,
    SandboxInfo,
    SearchMatch,
    SessionInfo,
    SnapshotInfo,
    TerminalInfo,
    Usage,
    VolumeInfo,
)
from cove.wire import replies, requests
from cove.wire.operation import IMAGES, KEYS, SANDBOXES, SNAPSHOTS, AnyOperation, By, Caller, Form, Operation, row
from cove.wire.replies import NOTHING, plain
from cove.wire.requests import Nothing
from cove.wire.target import Target

_S, _P, _H = Target.SANDBOX, Target.PROCESS, Target.SESSION
_T, _C, _F, _V = Target.TERMINAL, Target.CONTEXT, Target.FILES, Target.GIT

# fmt: off
HEALTH = row("health", "GET /health", Target.SERVER, "health", "Whether the server answers; takes no key", Nothing, replies.JSON_PAGE, Form.PAGE, by=By.GATEWAY, caller=Caller.ANYONE)
METRICS = row("metrics", "GET /metrics", Target.SERVER, "metrics", "What monitoring is told, for Prometheus", Nothing, replies.METRICS, Form.PAGE, by=By.GATEWAY)
OPENAPI_JSON = row("openapi_json", "GET /v1/openapi.json", Target.SERVER, "openapi_json", "This document", Nothing, replies.JSON_PAGE, Form.PAGE, by=By.GATEWAY, caller=Caller.READER)
OPENAPI_HTML = row("openapi_html", "GET /v1/openapi.html", Target.SERVER, "openapi_html", "This document as a page", Nothing, replies.HTML_PAGE, Form.PAGE, by=By.GATEWAY, caller=Caller.READER)
OPENAPI_PAGE = row("openapi_page", "GET /v1/openapi", Target.SERVER, "openapi_html", "The same page", Nothing, replies.HTML_PAGE, Form.PAGE, by=By.GATEWAY, caller=Caller.READER)

CREATE = row("create_sandbox", f"POST {SANDBOXES}", Target.SERVER, "create", "Make a sandbox", requests.CreateSandbox, replies.SANDBOX, makes=True, by=By.GATEWAY, success=201)
LIST = row("list_sandboxes", f"GET {SANDBOXES}", Target.SERVER, "list", "All sandboxes, or those with some labels or a status", requests.ListSandboxes, plain(list[SandboxInfo]), by=By.GATEWAY)
INFO = row("get_sandbox", "GET ", _S, "info", "What a sandbox is", Nothing, plain(SandboxInfo), by=By.EITHER)
DESTROY = row("destroy_sandbox", "DELETE ", _S, "destroy", "End a sandbox and remove all it has", Nothing, NOTHING, by=By.GATEWAY)
STOP = row("stop_sandbox", "POST /stop", _S, "stop", "End what runs, keep all else until it is started", Nothing, NOTHING, by=By.RUNNING, repeatable=True)
START = row("start_sandbox", "POST /start", _S, "start", "Start a sandbox that is stopped or lost, resume a paused one", Nothing, NOTHING, by=By.RUNNING, repeatable=True)
PAUSE = row("pause_sandbox", "POST /pause", _S, "pause", "Freeze everything in a sandbox", requests.Pause, NOTHING, by=By.RUNNING, repeatable=True)
RESUME = row("resume_sandbox", "POST /resume", _S, "resume", "Let a paused sandbox go on", Nothing, NOTHING, by=By.RUNNING, repeatable=True)
SET_LIFETIME = row("set_lifetime", "PUT /lifetime", _S, "set_lifetime", "Destroy a sandbox so long from now", requests.SetLifetime, NOTHING, by=By.RUNNING)
SET_IDLE_TIMEOUT = row("set_idle_timeout", "PUT /idle_timeout", _S, "set_idle_timeout", "Stop or pause a sandbox when it has been idle", requests.SetIdleTimeout, NOTHING, by=By.RUNNING)
SET_LABELS = row("set_labels", "PUT /labels", _S, "set_labels", "Replace the labels of a sandbox", requests.SetLabels, NOTHING, by=By.RUNNING)
MOVE = row("move_sandbox", "POST /move", _S, "move", "Move a stopped sandbox to another node of the cluster", requests.MoveSandbox, NOTHING, by=By.GATEWAY)
RESTART = row("restart_sandbox", "POST /restart", _S, "restart", "End what runs, start again on the same files", Nothing, NOTHING, by=By.RUNNING)
JOURNAL = row("journal", "GET /journal", _S, "journal", "What was done to a sandbox and in it, from a cursor on", requests.ReadJournal, replies.JOURNAL_EVENT, Form.EVENTS, by=By.EITHER)
LIST_DESTROYED = row("list_destroyed", "GET /v1/journals", Target.SERVER, "list_destroyed", "Destroyed sandboxes whose journals are kept", Nothing, plain(list[DestroyedSandbox]), by=By.GATEWAY, caller=Caller.ADMIN)
DESTROYED_JOURNAL = row("destroyed_journal", "GET /v1/journals/{key}", Target.SERVER, "destroyed_journal", "The journal of a destroyed sandbox", requests.ReadKeptJournal, replies.JOURNAL_EVENT, Form.EVENTS, by=By.GATEWAY, caller=Caller.ADMIN)

USAGE = row("get_usage", "GET /usage", _S, "usage", "What a sandbox uses of the machine", Nothing, plain(Usage))
EXEC = row("exec", "POST /exec", _S, "exec", "Run one command", requests.ExecAs, replies.EXEC)
SET_ENV = row("set_env", "PATCH /env", _S, "set_env", "Change the environment of what starts later", requests.SetEnv, NOTHING)

CREATE_TOKEN = row("create_token", "POST /token", _S, "token", "Make a token for some operations of this sandbox", requests.MakeToken, replies.TOKEN, by=By.GATEWAY)

SNAPSHOT = row("snapshot_sandbox", "POST /snapshots", _S, "snapshot", "Keep the files as they are now", requests.MakeSnapshot, replies.SNAPSHOT, makes=True, success=201)
COMMIT = row("commit_sandbox", "POST /commit", _S, "commit", "Make an image of a sandbox as it is now", requests.CommitSandbox, replies.IMAGE, success=201)
RESTORE = row("restore_sandbox", "POST /restore", _S, "restore", "Go back to a snapshot; what runs is ended", requests.Restore, NOTHING)
FORK = row("fork_sandbox", "POST /fork", _S, "fork", "Make copies of a sandbox as it is now", requests.Fork, replies.SANDBOXES, makes=True, success=201)
CHANGES_SINCE = row("list_changes", "GET /changes", _S, "changes", "Files that differ from creation, or from a snapshot", requests.Since, plain(list[FileChange]))
DIFF_SINCE = row("diff_sandbox", "GET /diff", _S, "diff", "Differences as a patch", requests.DiffSince, replies.DIFF)
BEGIN_TRANSACTION = row("begin_transaction", "POST /transactions", _S, "begin_transaction", "Begin a transaction", requests.Lease, replies.TRANSACTION, success=201)
RENEW_TRANSACTION = row("renew_transaction", "PATCH /transactions/{transaction}", _S, "renew_transaction", "Keep a transaction open", requests.Lease, NOTHING, repeatable=True)
COMMIT_TRANSACTION = row("commit_transaction", "POST /transactions/{transaction}/commit", _S, "commit_transaction", "Keep what was written since it began", Nothing, NOTHING)
ROLLBACK_TRANSACTION = row("rollback_transaction", "DELETE /transactions/{transaction}", _S, "rollback_transaction", "Take back what was written since it began", Nothing, NOTHING, repeatable=True)
RESET = row("reset_sandbox", "POST /reset", _S, "reset", "End everything and go back to the files as created", Nothing, plain(ResetReport))

LIST_SNAPSHOTS = row("list_snapshots", f"GET {SNAPSHOTS}", Target.SERVER, "list_snapshots", "All snapshots", Nothing, plain(list[SnapshotInfo]), by=By.GATEWAY)
GET_SNAPSHOT = row("get_snapshot", f"GET {SNAPSHOTS}/{{snapshot}}", Target.SERVER, "get_snapshot", "One snapshot", Nothing, replies.SNAPSHOT, by=By.GATEWAY)
LOAD_SNAPSHOT = row("load_snapshot", f"POST {SNAPSHOTS}", Target.SERVER, "load_archive", "Load an exported snapshot", Nothing, replies.SNAPSHOT, Form.STREAM, makes=True, by=By.GATEWAY, success=201)
EXPORT_SNAPSHOT = row("export_snapshot", f"GET {SNAPSHOTS}/{{snapshot}}/archive", Target.SNAPSHOT, "read_archive", "Export a snapshot as one file", Nothing, NOTHING, Form.CONTENT, by=By.GATEWAY)
SNAPSHOT_DIGEST = row("snapshot_digest", f"GET {SNAPSHOTS}/{{snapshot}}/digest", Target.SNAPSHOT, "digest", "The digest of a snapshot's files", Nothing, replies.DIGEST, by=By.GATEWAY)
DELETE_SNAPSHOT = row("delete_snapshot", f"DELETE {SNAPSHOTS}/{{snapshot}}", Target.SNAPSHOT, "delete", "Remove a snapshot", Nothing, NOTHING, by=By.GATEWAY)

SET_NETWORK = row("set_network", "PUT /network", _S, "set_network", "Change the network policy", requests.SetNetwork, NOTHING)
NETWORK_LOG = row("network_log", "GET /network/log", _S, "network_log", "What the policy allowed and refused, from a cursor on", requests.NetworkLog, replies.NETWORK_EVENT, Form.EVENTS)

START_PROCESS = row("start_process", "POST /processes", _S, "start_process", "Start a process", requests.StartProcessAs, replies.PROCESS, makes=True)
LIST_PROCESSES = row("list_processes", "GET /processes", _S, "list_processes", "All running and remembered processes", Nothing, replies.PROCESSES)
KILL_ALL_PROCESSES = row("kill_all_processes", "POST /kill_all_processes", _S, "kill_all_processes", "Signal every process", requests.Kill, replies.COUNT)
CLEANUP_PROCESSES = row("cleanup_processes", "POST /cleanup_processes", _S, "cleanup_processes", "Forget the ended processes", Nothing, replies.COUNT)
GET_PROCESS = row("get_process", "GET /processes/{process}", _S, "get_process", "One process", Nothing, replies.PROCESS)
KILL_PROCESS = row("kill_process", "POST /processes/{process}/kill", _P, "kill", "Signal the whole tree of a process", requests.Kill, replies.PROCESS_AFTERWARDS)
TERMINATE_PROCESS = row("terminate_process", "POST /processes/{process}/terminate", _P, "terminate", "End the whole tree of a process", requests.Terminate, replies.PROCESS_AFTERWARDS)
WAIT_PROCESS = row("wait_process", "POST /processes/{process}/wait", _P, "wait", "Wait for its end", requests.Wait, plain(ProcessExit), repeatable=True)
PROCESS_OUTPUT = row("process_output", "POST /processes/{process}/output", _P, "output", "Wait for its end and give what it printed", requests.Wait, replies.EXEC, repeatable=True)
PROCESS_LOGS = row("process_logs", "GET /processes/{process}/logs", _P, "logs", "What it prints, from a cursor on", requests.Logs, replies.LOG_EVENT, Form.EVENTS)
WAIT_FOR_LOG = row("wait_for_log", "POST /processes/{process}/wait_for_log", _P, "wait_for_log", "Wait for a line", requests.WaitForLog, plain(LogMatch), repeatable=True)
WAIT_FOR_PORT = row("wait_for_port", "POST /processes/{process}/wait_for_port", _P, "wait_for_port", "Wait until a port answers", requests.WaitForPort, NOTHING, repeatable=True)
WRITE_STDIN = row("write_stdin", "POST /processes/{process}/stdin", _P, "write_stdin", "Write to its standard input", Nothing, NOTHING, Form.UPLOAD)
CLOSE_STDIN = row("close_stdin", "DELETE /processes/{process}/stdin", _P, "close_stdin", "End its standard input", Nothing, NOTHING)

CREATE_SESSION = row("create_session", "POST /sessions", _S, "create_session", "Start a shell with state", requests.CreateSession, replies.SESSION, makes=True)
LIST_SESSIONS = row("list_sessions", "GET /sessions", _S, "list_sessions", "All sessions", Nothing, plain(list[SessionInfo]))
GET_SESSION = row("get_session", "GET /sessions/{session}", _S, "get_session", "Whether a session is there", Nothing, replies.SESSION)
DELETE_SESSION = row("delete_session", "DELETE /sessions/{session}", _S, "delete_session", "End a session and all it started", Nothing, NOTHING)
SESSION_EXEC = row("session_exec", "POST /sessions/{session}/exec", _H, "exec", "Run one command in the shell", requests.Exec, replies.EXEC)
SESSION_START_PROCESS = row("session_start_process", "POST /sessions/{session}/processes", _H, "start_process", "Start a process from a copy of the shell's state", requests.StartProcess, replies.PROCESS, makes=True)
SESSION_SET_ENV = row("session_set_env", "PATCH /sessions/{session}/env", _H, "set_env", "Export variables in the shell", requests.SetEnv, NOTHING)
SESSION_ENV = row("session_env", "GET /sessions/{session}/env", _H, "env", "The exported variables", Nothing, replies.ENV)
SESSION_CWD = row("session_cwd", "GET /sessions/{session}/cwd", _H, "cwd", "The working directory", Nothing, replies.CWD)
FORK_SESSION = row("fork_session", "POST /sessions/{session}/fork", _H, "fork", "Copy a session with its shell's state", Nothing, replies.SESSION, makes=True)

TERMINAL = row("terminal", "POST /terminals", _S, "terminal", "Get or create a terminal", requests.OpenTerminal, replies.TERMINAL, makes=True)
LIST_TERMINALS = row("list_terminals", "GET /terminals", _S, "list_terminals", "All terminals", Nothing, plain(list[TerminalInfo]))
GET_TERMINAL = row("get_terminal", "GET /terminals/{terminal}", _S, "get_terminal", "One terminal", Nothing, replies.TERMINAL)
DESTROY_TERMINAL = row("destroy_terminal", "DELETE /terminals/{terminal}", _T, "destroy", "End a terminal and all it started", Nothing, NOTHING)
RESIZE_TERMINAL = row("resize_terminal", "POST /terminals/{terminal}/resize", _T, "resize", "Change its size", requests.Resize, NOTHING)
CONNECT_TERMINAL = row("connect_terminal", "GET /terminals/{terminal}/connect", _T, "connect", "View it and type: a WebSocket", requests.Connect, NOTHING, Form.WEBSOCKET)

CREATE_CONTEXT = row("create_code_context", "POST /contexts", _S, "create_code_context", "Start an executor with state", requests.CreateCodeContext, replies.CONTEXT, makes=True)
LIST_CONTEXTS = row("list_code_contexts", "GET /contexts", _S, "list_code_contexts", "All code contexts", Nothing, plain(list[CodeContextInfo]))
GET_CONTEXT = row("get_code_context", "GET /contexts/{context}", _S, "get_code_context", "One code context", Nothing, replies.CONTEXT)
DELETE_CONTEXT = row("delete_code_context", "DELETE /contexts/{context}", _S, "delete_code_context", "End an executor and all it started", Nothing, NOTHING)
RUN_IN_CONTEXT = row("run_in_context", "POST /contexts/{context}/run", _C, "run", "Run code", requests.RunInContext, plain(Execution))
STREAM_IN_CONTEXT = row("stream_in_context", "POST /contexts/{context}/stream", _C, "stream", "Run code, as events", requests.RunInContext, replies.CODE_EVENT, Form.EVENTS)
FORK_CONTEXT = row("fork_context", "POST /contexts/{context}/fork", _C, "fork", "Copy a context with its variables", requests.ForkContext, replies.CONTEXTS, makes=True)
INTERRUPT_CONTEXT = row("interrupt_context", "POST /contexts/{context}/interrupt", _C, "interrupt", "Interrupt what runs", Nothing, NOTHING)
RUN_CODE = row("run_code", "POST /run_code", _S, "run_code", "Run code in a context or a clean executor", requests.RunCode, plain(Execution))
STREAM_CODE = row("stream_code", "POST /stream_code", _S, "stream_code", "The same, as events", requests.RunCode, replies.CODE_EVENT, Form.EVENTS)

READ_FILE = row("read_file", "GET /files/content", _F, "read_stream", "Read a file or a part of it", requests.ReadFile, NOTHING, Form.CONTENT)
WRITE_FILE = row("write_file", "PUT /files/content", _F, "write_stream", "Replace a file's content", requests.WriteFile, replies.COUNT, Form.STREAM)
APPEND_FILE = row("append_file", "POST /files/append", _F, "append", "Add to the end of a file", requests.FilePath, NOTHING, Form.UPLOAD)
MAKE_DIRECTORY = row("make_directory", "POST /files/mkdir", _F, "mkdir", "Make a directory", requests.MakeDirectory, NOTHING)
REMOVE_FILE = row("remove_file", "POST /files/remove", _F, "remove", "Remove a file", requests.FilePath, NOTHING)
REMOVE_TREE = row("remove_tree", "POST /files/remove_tree", _F, "remove_tree", "Remove a directory and all in it", requests.FilePath, NOTHING)
RENAME_FILE = row("rename_file", "POST /files/rename", _F, "rename", "Rename on one file system", requests.Rename, NOTHING)
MOVE_FILE = row("move_file", "POST /files/move", _F, "move", "Move, as mv", requests.Transfer, NOTHING)
COPY_FILE = row("copy_file", "POST /files/copy", _F, "copy", "Copy, as cp -r", requests.Transfer, NOTHING)
LIST_FILES = row("list_files", "GET /files/list", _F, "list", "What is in a directory", requests.ListFiles, plain(list[FileInfo]))
STAT_FILE = row("stat_file", "GET /files/stat", _F, "stat", "What stands under a name", requests.FilePath, plain(FileInfo))
FILE_EXISTS = row("file_exists", "GET /files/exists", _F, "exists", "Whether there is anything", requests.FilePath, replies.EXISTS)
CHANGE_MODE = row("change_mode", "POST /files/chmod", _F, "chmod", "Change permission bits", requests.ChangeMode, NOTHING)
GLOB_FILES = row("glob_files", "POST /files/glob", _F, "glob", "Which paths match", requests.Glob, plain(list[str]), repeatable=True)
SEARCH_FILES = row("search_files", "POST /files/search", _F, "search", "Which lines match", requests.Search, plain(list[SearchMatch]), repeatable=True)
REPLACE_TEXT = row("replace_text", "POST /files/replace", _F, "replace", "Exact edits", requests.Replace, replies.COUNT)
UPLOAD_TREE = row("upload_tree", "PUT /files/tree", _F, "write_archive", "Unpack a tar stream", requests.FilePath, NOTHING, Form.STREAM)
DOWNLOAD_TREE = row("download_tree", "GET /files/tree", _F, "read_archive", "A directory as a tar stream", requests.FilePath, NOTHING, Form.CONTENT)
WATCH_FILES = row("watch_files", "POST /files/watch", _F, "watch", "What changes", requests.Watch, replies.FILE_EVENT, Form.EVENTS)
CHECK_CHANGES = row("check_changes", "POST /files/check_changes", _F, "check_changes", "Whether a tree has changed", requests.CheckChanges, plain(Changes), repeatable=True)

CLONE = row("clone_repository", "POST /git/clone", _V, "clone", "Clone a repository", requests.CloneRepository, plain(GitClone))
GIT_STATUS = row("git_status", "GET /git/status", _V, "status", "What is checked out, and which files differ", requests.Repository, plain(GitStatus))
GIT_DIFF = row("git_diff", "POST /git/diff", _V, "diff", "Changes as a patch", requests.DiffRepository, replies.DIFF, repeatable=True)
GIT_ADD = row("git_add", "POST /git/add", _V, "add", "Stage files", requests.AddToRepository, NOTHING)
GIT_COMMIT = row("git_commit", "POST /git/commit", _V, "commit", "Record what is staged", requests.Commit, plain(GitHead))
GIT_PUSH = row("git_push", "POST /git/push", _V, "push", "Send a branch to a remote", requests.Push, NOTHING)
GIT_PULL = row("git_pull", "POST /git/pull", _V, "pull", "Fetch and merge", requests.Pull, plain(GitHead))
GIT_BRANCH = row("git_branch", "POST /git/branch", _V, "branch", "Make or delete a branch", requests.ChangeBranch, NOTHING)
GIT_BRANCHES = row("git_branches", "GET /git/branches", _V, "branches", "The local branches", requests.Repository, plain(list[GitBranch]))
GIT_CHECKOUT = row("git_checkout", "POST /git/checkout", _V, "checkout", "Switch to a branch, a tag or a commit", requests.Checkout, plain(GitHead))

EXPOSE_PORT = row("expose_port", "POST /ports", Target.PORTS, "expose", "Let others reach a port by a URL", requests.ExposePort, plain(ExposedPort))
LIST_PORTS = row("list_ports", "GET /ports", Target.PORTS, "list", "All exposed ports", Nothing, plain(list[ExposedPort]))
UNEXPOSE_PORT = row("unexpose_port", "DELETE /ports/{port}", Target.PORTS, "unexpose", "Its URL leads nowhere from here on", Nothing, NOTHING)
CONNECT_PORT = row("connect_port", "GET /ports/{port}/connect", Target.PORTS, "connect", "Bytes to and from a port: an upgrade to tcp", requests.ConnectPort, NOTHING, Form.TCP)

ADD_MOUNT = row("add_mount", "POST /mounts", Target.MOUNTS, "add", "Mount a directory, a volume or a bucket", requests.AddMount, NOTHING)
LIST_MOUNTS = row("list_mounts", "GET /mounts", Target.MOUNTS, "list", "All mounts", Nothing, plain(list[AnyMount]))
REMOVE_MOUNT = row("remove_mount", "DELETE /mounts", Target.MOUNTS, "remove", "Unmount", requests.MountTarget, NOTHING)
SYNC_MOUNT = row("sync_mount", "POST /mounts/sync", Target.MOUNTS, "sync", "Send what was written to a bucket", requests.MountTarget, NOTHING)

CREATE_VOLUME = row("create_volume", "POST /v1/volumes", Target.SERVER, "create_volume", "Make a volume", requests.CreateVolume, replies.VOLUME, makes=True, by=By.GATEWAY, success=201)
LIST_VOLUMES = row("list_volumes", "GET /v1/volumes", Target.SERVER, "list_volumes", "All volumes", Nothing, plain(list[VolumeInfo]), by=By.GATEWAY)
GET_VOLUME = row("get_volume", "GET /v1/volumes/{volume}", Target.VOLUME, "info", "What a volume is, and what it holds", Nothing, plain(VolumeInfo), by=By.GATEWAY)
DELETE_VOLUME = row("delete_volume", "DELETE /v1/volumes/{volume}", Target.VOLUME, "delete", "Remove a volume with all that is in it", Nothing, NOTHING, by=By.GATEWAY)

CREATE_KEY = row("create_key", f"POST {KEYS}", Target.SERVER, "create_key", "Make an API key, which is told this once", requests.CreateKey, plain(ApiKeyMade), by=By.GATEWAY, caller=Caller.ADMIN, success=201)
LIST_KEYS = row("list_keys", f"GET {KEYS}", Target.SERVER, "list_keys", "All API keys", Nothing, plain(list[ApiKeyInfo]), by=By.GATEWAY, caller=Caller.ADMIN)
GET_KEY = row("get_key", f"GET {KEYS}/{{key}}", Target.SERVER, "get_key", "One API key", Nothing, plain(ApiKeyInfo), by=By.GATEWAY, caller=Caller.ADMIN)
ROTATE_KEY = row("rotate_key", f"POST {KEYS}/{{key}}/rotate", Target.SERVER, "rotate_key", "Replace an API key by a new one", Nothing, plain(ApiKeyMade), by=By.GATEWAY, caller=Caller.ADMIN)
DELETE_KEY = row("delete_key", f"DELETE {KEYS}/{{key}}", Target.SERVER, "delete_key", "Revoke an API key", Nothing, NOTHING, by=By.GATEWAY, caller=Caller.ADMIN)

LIST_IMAGES = row("list_images", f"GET {IMAGES}", Target.SERVER, "list_images", "All images", Nothing, plain(list[ImageInfo]), by=By.GATEWAY)
LOAD_IMAGE = row("load_image", f"POST {IMAGES}", Target.SERVER, "load_image_events", "Load an archive of an image, or of a root file system", requests.LoadImage, replies.IMAGE_EVENT, Form.STREAM_WORK, by=By.GATEWAY, success=201)
PULL_IMAGE = row("pull_image", "POST /v1/pull_image", Target.SERVER, "pull_image_events", "Pull an image from a registry that the configuration allows", requests.PullImage, replies.IMAGE_EVENT, Form.WORK, by=By.GATEWAY, success=201)
BUILD_IMAGE = row("build_image", "POST /v1/build_image", Target.SERVER, "build_image_events", "Build an image from the archive of a directory with a Dockerfile", requests.BuildImage, replies.BUILD_EVENT, Form.STREAM_WORK, by=By.GATEWAY, success=201)
PRUNE_IMAGES = row("prune_images", "POST /v1/prune_images", Target.SERVER, "prune_images", "Remove what has no name, and with `all` images that nothing stands on", requests.PruneImages, plain(list[str]), by=By.GATEWAY)
GET_IMAGE = row("get_image", f"GET {IMAGES}/{{image}}", Target.IMAGE, "info", "What an image is", Nothing, plain(ImageInfo), by=By.GATEWAY)
SAVE_IMAGE = row("save_image", f"GET {IMAGES}/{{image}}/archive", Target.IMAGE, "read_archive", "An image as an OCI archive", Nothing, NOTHING, Form.CONTENT, by=By.GATEWAY)
DELETE_IMAGE = row("delete_image", f"DELETE {IMAGES}/{{image}}", Target.IMAGE, "delete", "Forget an image", requests.DeleteImage, NOTHING, by=By.GATEWAY)

CREATE_BACKUP = row("create_backup", "POST /backups", Target.BACKUPS, "create", "Save a directory", requests.CreateBackup, plain(BackupInfo))
LIST_BACKUPS = row("list_backups", "GET /backups", Target.BACKUPS, "list", "All backups that can be restored", Nothing, plain(list[BackupInfo]))
RESTORE_BACKUP = row("restore_backup", "POST /backups/{backup}/restore", Target.BACKUPS, "restore", "Make a directory what a backup has", requests.RestoreBackup, plain(BackupInfo))
DELETE_BACKUP = row("delete_backup", "DELETE /backups/{backup}", Target.BACKUPS, "delete", "Remove a backup", Nothing, NOTHING)
# fmt: on

OPERATIONS: Final[tuple[AnyOperation, ...]] = tuple(
    value for value in dict(globals()).values() if isinstance(value, Operation)
)
