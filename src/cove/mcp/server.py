"""Serve a toolset by the Model Context Protocol: its tools, and the sandbox's files as resources.

The package `mcp` cancels by scopes of anyio, which cancel again and again until a task has ended. What a call has to
clean up would be disturbed at every step. So each call runs in a task of its own, which is cancelled once and waited
for.
"""

import asyncio
import base64
import mimetypes
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from cove import __version__
from cove.errors import CoveError
from cove.model import FileInfo, FileKind
from cove.tasks import Tasks, Work, end, owned, shared
from cove.tools import ToolResult, Toolset
from cove.tools.files import read_bytes
from cove.tools.result import ToolFailed

SCHEME: Final = "sandbox://"
_INSTRUCTIONS: Final = (
    "A Linux computer of your own, isolated from the user's. The shell, notebooks and processes stay as you leave them "
    "until the connection ends; then everything is gone. Make a snapshot before what is risky."
)
_READING: Final = frozenset(("read_output", "read_file", "list_files", "search_files"))
_PROGRESS_SECONDS: Final = 1.0
_MOST_RESOURCES: Final = 1000

T = TypeVar("T")
Context: TypeAlias = "ServerRequestContext[object, object]"


def make_server(toolset: Toolset) -> "Server[object]":
    """Make the server of one toolset; whoever runs it closes the toolset afterwards."""
    handlers = _Handlers(toolset)
    return Server(
        "cove",
        version=__version__,
        title="Cove",
        instructions=_INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
    )


class _Handlers:
    """The requests of a client."""

    def __init__(self, toolset: Toolset) -> None:
        self._toolset = toolset

    async def list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(read_only_hint=tool.name in _READING),
                )
                for tool in self._toolset.tools
            ]
        )

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool, and report progress meanwhile."""
        return _to_result(await _apart(self._call(context, params)))

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> ToolResult:
        """Tell of a failure of the sandbox itself too: the user has to see to it."""
        async with Tasks(lambda _: None) as tasks:
            tasks.start(_report(context, params.name))
            try:
                return await self._toolset.call(params.name, params.arguments or {})
            except CoveError as error:
                return ToolResult(text=f"The sandbox has failed: {error.message}", is_error=True)

    async def list_resources(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """List the files in the working directory; any other can be read by its path."""
        try:
            entries = await _apart(self._toolset.sandbox.files.list(".", recursive=True, hidden=False))
        except CoveError as error:
            raise _failed(types.INTERNAL_ERROR, error.message) from None
        files = [entry for entry in entries if entry.kind is FileKind.FILE and "/node_modules/" not in entry.path]
        return types.ListResourcesResult(resources=[_to_resource(entry) for entry in files[:_MOST_RESOURCES]])

    async def list_templates(
        self, _: Context, __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="file", uri_template=SCHEME + "/{+path}", description="A file of the sandbox by its absolute path."
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(self, _: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Read a file, as text where it is UTF-8."""
        if not params.uri.startswith(SCHEME + "/"):
            raise _failed(types.INVALID_PARAMS, f"a file of the sandbox is {SCHEME} and its absolute path")
        path = unquote(params.uri.removeprefix(SCHEME), errors="surrogateescape")
        try:
            data = await _apart(read_bytes(self._toolset.sandbox.files, path))
        except (CoveError, ToolFailed, ValueError) as error:
            raise _failed(types.INVALID_PARAMS, str(error)) from None
        return types.ReadResourceResult(contents=[_to_contents(params.uri, path, data)])


async def _apart(work: Work[T]) -> T:
    task = owned(work)
    try:
        return await shared(task)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await end(task)
        raise


async def _report(context: Context, name: str) -> None:
    """Report progress while a call runs, to clients that asked for it."""
    seconds = 0.0
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        seconds += _PROGRESS_SECONDS
        await context.session.report_progress(seconds, message=f"{name} runs for {seconds:g} s")


def _to_result(result: ToolResult) -> types.CallToolResult:
    text = types.TextContent(type="text", text=result.text)
    images = [
        types.ImageContent(type="image", data=image.base64, mime_type=image.media_type) for image in result.images
    ]
    return types.CallToolResult(content=[text, *images], is_error=result.is_error)


def _to_resource(entry: FileInfo) -> types.Resource:
    return types.Resource(
        uri=SCHEME + quote(entry.path, errors="surrogateescape"),
        name=entry.name.encode("utf-8", "replace").decode(),
        mime_type=_mime_type(entry.path),
        size=entry.size,
    )


def _to_contents(uri: str, path: str, data: bytes) -> types.TextResourceContents | types.BlobResourceContents:
    try:
        return types.TextResourceContents(uri=uri, mime_type=_mime_type(path) or "text/plain", text=data.decode())
    except UnicodeDecodeError:
        blob = base64.b64encode(data).decode()
        return types.BlobResourceContents(uri=uri, mime_type=_mime_type(path) or "application/octet-stream", blob=blob)


def _mime_type(path: str) -> str | None:
    return mimetypes.guess_type(path.rpartition("/")[2])[0]


def _failed(code: int, message: str) -> MCPError:
    return MCPError(code, message.encode("utf-8", "replace").decode())
