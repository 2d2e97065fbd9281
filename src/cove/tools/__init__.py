"""Tools for any model: definitions, calls and answers in the shapes of each API, on one sandbox."""

from cove.tools.blocking import BlockingToolset
from cove.tools.catalogue import Tool
from cove.tools.conversation import ToolLimits
from cove.tools.langchain import langchain_tools
from cove.tools.result import ToolImage, ToolResult
from cove.tools.toolset import Toolset

__all__ = [
    "BlockingToolset",
    "Tool",
    "ToolImage",
    "ToolLimits",
    "ToolResult",
    "Toolset",
    "langchain_tools",
]
