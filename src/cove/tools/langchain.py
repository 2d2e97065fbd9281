"""The tools as LangChain takes them: StructuredTool objects, made by the package langchain-core when it is there."""

from typing import TYPE_CHECKING

from cove.errors import InterpreterNotReady
from cove.tools.catalogue import Tool
from cove.tools.result import Json
from cove.tools.toolset import Toolset

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool


def langchain_tools(toolset: Toolset) -> "list[BaseTool]":
    """Make a tool for `bind_tools` or an agent of each; they are called asynchronously (`ainvoke`)."""
    try:
        from langchain_core.tools import StructuredTool
    except ImportError:
        raise InterpreterNotReady("LangChain is not installed: pip install langchain-core") from None

    def make(tool: Tool) -> "BaseTool":
        async def call(**arguments: object) -> list[Json]:
            return (await toolset.call(tool.name, arguments)).langchain_content()

        return StructuredTool(
            name=tool.name, description=tool.description, args_schema=tool.schema, coroutine=call, func=None
        )

    return [make(tool) for tool in toolset.tools]
