"""The blocking form of a toolset, for programs that do not use asyncio."""

from collections.abc import Iterable, Sequence
from typing import Self

from cove.blocking import Sandbox
from cove.tools.catalogue import Tool
from cove.tools.conversation import ToolLimits
from cove.tools.result import Json, ToolResult
from cove.tools.toolset import Toolset


class BlockingToolset:
    """Tools for a model on a sandbox, for one conversation: `with BlockingToolset(sandbox) as toolset`."""

    def __init__(
        self, sandbox: Sandbox, *, tools: Sequence[str] | None = None, limits: ToolLimits | None = None
    ) -> None:
        self._portal = sandbox._portal
        self._inner = Toolset(sandbox._inner, tools=tools, limits=limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what the conversation started. Idempotent."""
        self._portal.call(self._inner.close)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, each with name, description and JSON schema."""
        return self._inner.tools

    def openai_chat(self) -> list[Json]:
        """Define the tools for OpenAI's chat completions, and whatever speaks their protocol."""
        return self._inner.openai_chat()

    def openai_responses(self) -> list[Json]:
        """Define the tools for OpenAI's responses."""
        return self._inner.openai_responses()

    def anthropic(self) -> list[Json]:
        """Define the tools for Anthropic's messages."""
        return self._inner.anthropic()

    def call(self, name: str, arguments: object) -> ToolResult:
        """Call a tool with what a model has sent, an object or JSON text. What the model did wrong is a result."""
        return self._portal.call(lambda: self._inner.call(name, arguments))

    def answer_openai_chat(self, tool_calls: Iterable[object] | None) -> list[Json]:
        """Answer the `tool_calls` of a message with those to append: one for each, then one with the images."""
        return self._portal.call(lambda: self._inner.answer_openai_chat(tool_calls))

    def answer_openai_responses(self, output: Iterable[object]) -> list[Json]:
        """Answer the output of a response with the items of the next input; none when the model is done."""
        return self._portal.call(lambda: self._inner.answer_openai_responses(output))

    def answer_anthropic(self, content: Iterable[object]) -> list[Json]:
        """Answer the content of a message with that of the user's next one; none when the model is done."""
        return self._portal.call(lambda: self._inner.answer_anthropic(content))
