"""A toolset: the tools of one conversation with a model, on one sandbox.

A model and what runs in the sandbox are both untrusted. What the model sends is checked against its tool's class before
anything happens; what comes back is cut to a budget of characters and images; every call has a deadline. What the model
did wrong is a result that says what to do next. What Cove or the machine did wrong is raised, because no model can
repair it: see `is_infrastructure_failure`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from cove.api import AsyncSandbox
from cove.errors import CoveError, FileError, FileNotFound, IsDirectory, LimitExceeded, NoSpace, ValidationFailed
from cove.tools import answers
from cove.tools import arguments as of
from cove.tools.arguments import Arguments
from cove.tools.catalogue import Tool, choose
from cove.tools.code import run_code
from cove.tools.commands import bash, run_command, shell
from cove.tools.conversation import Conversation, ToolLimits
from cove.tools.editor import edit_text
from cove.tools.files import edit_file, list_files, read_file, search_files, write_file
from cove.tools.patches import apply_patch
from cove.tools.processes import read_output, start_process, stop_process
from cove.tools.result import Json, ToolFailed, ToolResult
from cove.tools.state import expose_port, make_snapshot, restore

A = TypeVar("A", bound=Arguments)

# A call may take so much longer than the longest command.
_GRACE_SECONDS: Final = 60.0
_HINTS: Final[dict[type[CoveError], str]] = {
    FileNotFound: "look with list_files for what there is",
    IsDirectory: "it is a directory: use list_files",
    NoSpace: "remove files that are no longer needed",
    FileError: "look at it with run_command and ls -l",
    LimitExceeded: "ask for less at once",
}


@dataclass(frozen=True, slots=True)
class _Handler(Generic[A]):
    """The function behind a tool, with the class of its arguments."""

    arguments: type[A]
    run: Callable[[Conversation, A], Awaitable[ToolResult]]

    async def __call__(self, state: Conversation, arguments: Arguments) -> ToolResult:
        assert isinstance(arguments, self.arguments)
        return await self.run(state, arguments)


_HANDLERS: Final[dict[type[Arguments], Callable[[Conversation, Arguments], Awaitable[ToolResult]]]] = {
    of.RunCommand: _Handler(of.RunCommand, run_command),
    of.StartProcess: _Handler(of.StartProcess, start_process),
    of.ReadOutput: _Handler(of.ReadOutput, read_output),
    of.StopProcess: _Handler(of.StopProcess, stop_process),
    of.RunCode: _Handler(of.RunCode, run_code),
    of.ReadFile: _Handler(of.ReadFile, read_file),
    of.WriteFile: _Handler(of.WriteFile, write_file),
    of.EditFile: _Handler(of.EditFile, edit_file),
    of.ListFiles: _Handler(of.ListFiles, list_files),
    of.SearchFiles: _Handler(of.SearchFiles, search_files),
    of.ExposePort: _Handler(of.ExposePort, expose_port),
    of.MakeSnapshot: _Handler(of.MakeSnapshot, make_snapshot),
    of.Restore: _Handler(of.Restore, restore),
    of.Bash: _Handler(of.Bash, bash),
    of.TextEditor: _Handler(of.TextEditor, edit_text),
    of.Shell: _Handler(of.Shell, shell),
    of.ApplyPatch: _Handler(of.ApplyPatch, apply_patch),
}


class Toolset:
    """Tools for a model on a sandbox, for one conversation: `async with Toolset(sandbox) as toolset`.

    Leaving ends the shell, the processes and the notebooks of the conversation and removes its snapshots; the sandbox
    stays. `tools` chooses by name, or by the type that Anthropic gave a tool, such as `bash_20250124`.
    """

    def __init__(
        self, sandbox: AsyncSandbox, *, tools: Sequence[str] | None = None, limits: ToolLimits | None = None
    ) -> None:
        self._tools = choose(tools)
        self._state = Conversation(sandbox, limits or ToolLimits(), "read_output" in self._tools)
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End what the conversation started. Idempotent."""
        self._is_closed = True
        await self._state.close()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, each with name, description and JSON schema."""
        return tuple(self._tools.values())

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox that the tools work on."""
        return self._state.sandbox

    def openai_chat(self) -> list[Json]:
        """Define the tools for OpenAI's chat completions, and whatever speaks their protocol."""
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in self.tools
        ]

    def openai_responses(self) -> list[Json]:
        """Define the tools for OpenAI's responses; `shell` and `apply_patch` are those that its models know."""
        return [_for_responses(tool) for tool in self.tools]

    def anthropic(self) -> list[Json]:
        """Define the tools for Anthropic's messages; `bash` and the text editors are those that its models know."""
        limit = self._state.limits.max_characters
        return [
            {"type": tool.anthropic, "name": tool.name, **({"max_characters": limit} if tool.has_limit else {})}
            if tool.anthropic is not None
            else {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in self.tools
        ]

    async def call(self, name: str, arguments: object) -> ToolResult:
        """Call a tool with what a model has sent, an object or JSON text. What the model did wrong is a result.

        Raises only what is an infrastructure failure, or a mistake of your own program.
        """
        return await self.run(lambda state: self._call(state, name, arguments))

    async def run(self, work: Callable[[Conversation], Awaitable[ToolResult]]) -> ToolResult:
        """Run what a model asked for, within the deadline; what it did wrong becomes a result."""
        if self._is_closed:
            raise ValidationFailed("the toolset is closed: make another for the next conversation")
        seconds = self._state.limits.max_timeout + _GRACE_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await work(self._state)
        except ToolFailed as error:
            text = str(error)
        except TimeoutError:
            text = f"it took more than {seconds:g} s and was given up: ask for less at once"
        except UnicodeError:
            text = "an argument has characters that are no text: send it without them"
        except CoveError as error:
            if error.is_infrastructure_failure:
                raise
            text = _advise(error)
        return ToolResult(text=self._state.fit(f"Error: {text}"), is_error=True)

    async def answer_openai_chat(self, tool_calls: Iterable[object] | None) -> list[Json]:
        """Answer the `tool_calls` of a message with those to append: one for each, then one with the images."""
        return await answers.answer_openai_chat(self, tool_calls or ())

    async def answer_openai_responses(self, output: Iterable[object]) -> list[Json]:
        """Answer the output of a response with the items of the next input; none when the model is done."""
        return await answers.answer_openai_responses(self, output)

    async def answer_anthropic(self, content: Iterable[object]) -> list[Json]:
        """Answer the content of a message with that of the user's next one; none when the model is done."""
        return await answers.answer_anthropic(self, content)

    async def _call(self, state: Conversation, name: str, arguments: object) -> ToolResult:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolFailed(f"there is no tool {name[:100]!r}; there are: {', '.join(self._tools)}")
        decoded = tool.decode(arguments)
        return await _HANDLERS[type(decoded)](state, decoded)


def _for_responses(tool: Tool) -> Json:
    if tool.openai == "shell":
        return {"type": "shell", "environment": {"type": "local"}}
    if tool.openai is not None:
        return {"type": tool.openai}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema,
        "strict": False,
    }


def _advise(error: CoveError) -> str:
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), None)
    return error.message if hint is None else f"{error.message}: {hint}"
