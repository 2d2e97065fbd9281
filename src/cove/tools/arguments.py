"""Arguments of the tools, one class for each: their JSON schema is what a model sees, and what it sends is checked."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Path = Annotated[str, Meta(description="A path; a relative one starts where the shell stands.", min_length=1)]
Positive = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Timeout = Annotated[
    Positive | None, Meta(description="Seconds until it is ended; the default and the most are set by the user.")
]


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all arguments: fields that do not exist are refused."""


class RunCommand(Arguments, frozen=True, kw_only=True):
    """Run a command in a bash shell that stays: the directory, variables and functions are kept from call to call.

    It returns when the command has ended, with its output and its exit code. Standard input is empty, so nothing can
    ask questions. For servers and long work use start_process.
    """

    command: Annotated[str, Meta(description="The command line, or a script of many lines.")]
    timeout: Timeout = None


class StartProcess(Arguments, frozen=True, kw_only=True):
    """Start a server or other long work in the background, where the shell stands and with its variables.

    Returns an id at once; use it with read_output and stop_process.
    """

    command: Annotated[str, Meta(description="The command line.")]
    wait_for_port: Annotated[Port | None, Meta(description="Return only when something listens on this port.")] = None
    timeout: Annotated[Positive | None, Meta(description="Seconds to wait for the port, 30 by default.")] = None


class ReadOutput(Arguments, frozen=True, kw_only=True):
    """Read what a process has printed since it was last read, or a part of an output that was cut."""

    id: Annotated[str, Meta(description="The id of a process, or of an output, as another tool has named it.")]
    wait: Annotated[
        Annotated[float, Meta(ge=0, le=60)] | None,
        Meta(description="Of a process: seconds to wait when nothing is new, 5 by default."),
    ] = None
    offset: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Of an output: the first character to show.")
    ] = None


class StopProcess(Arguments, frozen=True, kw_only=True):
    """End a process and everything that it has started; returns how it ended and its last output."""

    id: Annotated[str, Meta(description="The id that start_process gave.")]


class RunCode(Arguments, frozen=True, kw_only=True):
    """Run code as a notebook does: variables and imports are kept from call to call, for each language.

    Returns what was printed, the value of the last expression, tables, and figures as images.
    """

    code: Annotated[str, Meta(description="The code.")]
    language: Literal["python", "javascript", "typescript"] = "python"
    timeout: Timeout = None


class ReadFile(Arguments, frozen=True, kw_only=True):
    """Read a text file, whole or some of its lines, or look at an image."""

    path: Path
    start_line: Annotated[int, Meta(description="The first line to show.", ge=1)] = 1
    line_count: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="How many lines to show; all by default.")
    ] = None


class WriteFile(Arguments, frozen=True, kw_only=True):
    """Write a text file as a whole; directories that are missing are made. To change a file use edit_file."""

    path: Path
    content: Annotated[str, Meta(description="The whole new content.")]


class EditFile(Arguments, frozen=True, kw_only=True):
    """Replace a text in a file. It must stand there exactly once, unless `all` is true."""

    path: Path
    old: Annotated[
        str, Meta(description="The text as it stands in the file, blanks and line breaks too.", min_length=1)
    ]
    new: Annotated[str, Meta(description="The text to put in its place.")]
    all: Annotated[bool, Meta(description="Replace it everywhere.")] = False


class ListFiles(Arguments, frozen=True, kw_only=True):
    """List a directory, or with `recursive` everything below it but .git and node_modules."""

    path: Path = "."
    recursive: bool = False


class SearchFiles(Arguments, frozen=True, kw_only=True):
    """Search text files for a regular expression; returns file, line number and line of each match."""

    pattern: Annotated[str, Meta(description="A regular expression, as Python has them.", min_length=1)]
    path: Path = "."
    glob: Annotated[str | None, Meta(description="Only files whose name matches, such as *.py.")] = None


class ExposePort(Arguments, frozen=True, kw_only=True):
    """Make a web server that listens on a port here reachable for the user; returns its URL."""

    port: Annotated[Port, Meta(description="The port that the server listens on.")]


class MakeSnapshot(Arguments, frozen=True, kw_only=True):
    """Keep the files and the shell as they are now; returns an id for restore. Do this before what is risky."""


class Restore(Arguments, frozen=True, kw_only=True):
    """Go back to a snapshot: files and shell are as they were then, and everything that runs is ended."""

    id: Annotated[str, Meta(description="The id that snapshot gave.")]


class Bash(Arguments, frozen=True, kw_only=True):
    """Run a command in a bash shell that stays."""

    command: Annotated[str | None, Meta(description="The command to run.")] = None
    restart: Annotated[bool | None, Meta(description="Begin again with a new shell.")] = None
    timeout: Timeout = None


class TextEditor(Arguments, frozen=True, kw_only=True):
    """View, create and edit files."""

    command: Literal["view", "create", "str_replace", "insert", "undo_edit"]
    path: Path
    view_range: Annotated[list[int] | None, Meta(description="First and last line; -1: to the end.")] = None
    file_text: Annotated[str | None, Meta(description="Of create: the whole content.")] = None
    old_str: Annotated[str | None, Meta(description="Of str_replace: the text that stands there once.")] = None
    new_str: Annotated[str | None, Meta(description="Of str_replace: the text to put in its place.")] = None
    insert_line: Annotated[int | None, Meta(description="Of insert: the line to insert after; 0: at the top.")] = None
    insert_text: Annotated[str | None, Meta(description="Of insert: the text to insert.")] = None


class Shell(Arguments, frozen=True, kw_only=True):
    """Run shell commands one after the other, in a shell that stays."""

    commands: Annotated[list[str], Meta(description="The command lines.", min_length=1, max_length=100)]
    timeout_ms: Annotated[Positive | None, Meta(description="Milliseconds for each command.")] = None
    max_output_length: Annotated[
        Annotated[int, Meta(gt=0)] | None, Meta(description="Characters to return of each command.")
    ] = None


class ApplyPatch(Arguments, frozen=True, kw_only=True):
    """Create, change, rename and delete files by a patch in the V4A format. One that does not fit changes nothing.

    It begins with the line `*** Begin Patch` and ends with `*** End Patch`. Between them stand sections that begin with
    `*** Add File: PATH`, `*** Update File: PATH` or `*** Delete File: PATH`. In an update every hunk begins with `@@`,
    optionally followed by a line that stands above it, such as a class or def; then come lines that begin with a blank
    (kept), `-` (removed) or `+` (added). Give three lines of context. There are no line numbers.
    """

    patch: Annotated[str, Meta(description="The whole patch.")]
