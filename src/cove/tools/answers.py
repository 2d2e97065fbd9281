"""Answer a model's turn: run the tool calls in it, and give what to send back, in the shapes of each API.

Items are what an SDK gives: its objects, or plain mappings. They come from a model, so that any part may be missing.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeVar

import msgspec

from cove.core.v4a_patch import AddFile, DeleteFile, PatchedFile, UpdateFile, parse_added, parse_hunks
from cove.local.threads import in_thread
from cove.tools.arguments import Path, Shell
from cove.tools.commands import shell_output
from cove.tools.conversation import Conversation
from cove.tools.patches import apply_files
from cove.tools.result import Json, ToolFailed, ToolResult

T = TypeVar("T")


class Caller(Protocol):
    """Interface of a toolset, as answers use it."""

    async def call(self, name: str, arguments: object) -> ToolResult:
        """Call a tool."""

    async def run(self, work: Callable[[Conversation], Awaitable[ToolResult]]) -> ToolResult:
        """Run work of a shape of its own."""


async def answer_openai_chat(toolset: Caller, tool_calls: Iterable[object]) -> list[Json]:
    """Answer the `tool_calls` of a message. Images come after all answers, from the user: tools can only send text."""
    messages: list[Json] = []
    images: list[Json] = []
    for call in map(_plain, tool_calls):
        function = _plain(call.get("function"))
        result = await toolset.call(str(function.get("name")), function.get("arguments"))
        messages.append({"role": "tool", "tool_call_id": call.get("id"), "content": result.text})
        images += [{"type": "image_url", "image_url": {"url": image.data_url}} for image in result.images]
    if images:
        text = {"type": "text", "text": "The images of the tools above, in order:"}
        messages.append({"role": "user", "content": [text, *images]})
    return messages


async def answer_openai_responses(toolset: Caller, output: Iterable[object]) -> list[Json]:
    """Answer the items of a response: function, shell and apply-patch calls; others need no answer."""
    answers: list[Json] = []
    for item in map(_plain, output):
        match item.get("type"):
            case "function_call":
                result = await toolset.call(str(item.get("name")), item.get("arguments"))
                content: object = result.openai_content() if result.images else result.text
                answers.append({"type": "function_call_output", "call_id": item.get("call_id"), "output": content})
            case "shell_call":
                answers.append(await _answer_shell(toolset, item))
            case "apply_patch_call":
                answers.append(await _answer_patch(toolset, item))
    return answers


async def answer_anthropic(toolset: Caller, content: Iterable[object]) -> list[Json]:
    """Answer the `tool_use` blocks of a message: the content of the user's next one."""
    answers: list[Json] = []
    for block in map(_plain, content):
        if block.get("type") == "tool_use":
            result = await toolset.call(str(block.get("name")), block.get("input"))
            answers.append(
                {
                    "type": "tool_result",
                    "tool_use_id": block.get("id"),
                    "content": result.anthropic_content(),
                    "is_error": result.is_error,
                }
            )
    return answers


def _plain(item: object) -> Mapping[str, object]:
    dump = getattr(item, "model_dump", None)
    if callable(dump):
        item = dump()
    return item if isinstance(item, Mapping) else {}


async def _answer_shell(toolset: Caller, item: Mapping[str, object]) -> Json:
    entries: list[Json] = []
    action = {name: value for name, value in _plain(item.get("action")).items() if name in Shell.__struct_fields__}

    async def run(state: Conversation) -> ToolResult:
        entries.extend(await shell_output(state, _decode(action, Shell)))
        return ToolResult(text="")

    failed = await toolset.run(run)
    if failed.is_error:
        entries = [{"stdout": "", "stderr": failed.text, "outcome": {"type": "exit", "exit_code": 1}}]
    answer: Json = {"type": "shell_call_output", "call_id": item.get("call_id"), "output": entries}
    if action.get("max_output_length") is not None:  # the API wants back what it asked for
        answer["max_output_length"] = action["max_output_length"]
    return answer


class _Operation(msgspec.Struct, frozen=True):
    """One operation of an apply-patch call."""

    type: str
    path: Path
    diff: str = ""


async def _answer_patch(toolset: Caller, item: Mapping[str, object]) -> Json:
    async def run(state: Conversation) -> ToolResult:
        operation = _decode(_plain(item.get("operation")), _Operation)
        return await apply_files(state, (await in_thread(_patched_file, operation),))

    result = await toolset.run(run)
    status = "failed" if result.is_error else "completed"
    return {
        "type": "apply_patch_call_output",
        "call_id": item.get("call_id"),
        "status": status,
        "output": result.text,
    }


def _patched_file(operation: _Operation) -> PatchedFile:
    match operation.type:
        case "create_file":
            return AddFile(operation.path, parse_added(operation.diff))
        case "update_file":
            return UpdateFile(operation.path, parse_hunks(operation.diff))
        case "delete_file":
            return DeleteFile(operation.path)
    raise ToolFailed("an operation is create_file, update_file or delete_file")


def _decode(value: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.MsgspecError as error:
        raise ToolFailed(f"the call is malformed: {error}") from None
