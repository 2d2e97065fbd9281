"""The tool run_code: a notebook for each language, whose figures are images."""

from typing import Final

from cove.errors import ContextCrashed, ContextNotFound
from cove.model import Execution, Outcome, Result
from cove.tools.arguments import RunCode
from cove.tools.conversation import Conversation
from cove.tools.result import MOST_IMAGE_BYTES, ToolFailed, ToolImage, ToolResult, image_type

_LOST: Final = "All its variables are lost; the next code begins anew."


async def run_code(state: Conversation, arguments: RunCode) -> ToolResult:
    """Run code; an exception of it is no error of the tool."""
    seconds = state.seconds(arguments.timeout)
    context = await state.context(arguments.language)
    try:
        execution = await context.run(arguments.code, timeout=seconds)
    except ContextCrashed as error:
        if error.is_infrastructure_failure:
            raise
        await state.drop_context(arguments.language)
        raise ToolFailed(f"The code has ended its own process with exit code {error.exit_code}. {_LOST}") from None
    except ContextNotFound:
        await state.drop_context(arguments.language)
        raise ToolFailed(f"The notebook is gone, because the sandbox was stopped. {_LOST}") from None
    return _show(state, execution, seconds)


def _show(state: Conversation, execution: Execution, seconds: float) -> ToolResult:
    parts = [execution.stdout.rstrip("\n")]
    if execution.stderr:
        parts.append("[stderr]\n" + execution.stderr.rstrip("\n"))
    images: list[ToolImage] = []
    parts += [_show_result(result, images, state.limits.max_images) for result in execution.results]
    if execution.error is not None:
        parts.append(execution.error.traceback.rstrip("\n") or f"{execution.error.name}: {execution.error.message}")
    if execution.outcome is Outcome.TIMED_OUT:
        parts.append(f"[interrupted after {seconds:g} s; variables are kept. Give a longer timeout, or less to do.]")
    if execution.truncated:
        parts.append("[some output was not kept: write it to a file]")
    text = "\n".join(part for part in parts if part)
    return ToolResult(text=state.fit(text or "(no output)"), images=tuple(images))


def _show_result(result: Result, images: list[ToolImage], most: int) -> str:
    """Add what a model can see to the images; return what it can read."""
    data = result.png or result.jpeg
    if data is not None:
        return _add_image(data, images, most)
    text = result.text or result.markdown or result.latex or result.svg or result.html
    return text or (f"(a result of type {', '.join(list(result.data)[:5])})" if result.data else "")


def _add_image(data: bytes, images: list[ToolImage], most: int) -> str:
    kind = image_type(data)
    if kind is None:
        return "[an image that is none: it was left out]"
    if len(data) > MOST_IMAGE_BYTES:
        return f"[an image of {len(data)} bytes was left out: make it smaller, for example with a lower dpi]"
    if len(images) >= most:
        return f"[an image was left out: at most {most} are shown; show it by a call of its own]"
    images.append(ToolImage(data=data, media_type=kind))
    return f"[image {len(images)}]"
