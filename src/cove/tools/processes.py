"""Tools for processes in the background: start_process, read_output, stop_process."""

import asyncio
from contextlib import aclosing, suppress
from typing import Final

from cove.core.capture import Capture
from cove.errors import NotFound, ProcessExitedBeforeReady, ProcessReadyTimeout, ProcessWaitTimeout
from cove.model import Exit, Gap, Outcome, Output
from cove.tools.arguments import ReadOutput, StartProcess, StopProcess
from cove.tools.conversation import Conversation, StartedProcess
from cove.tools.result import ToolFailed, ToolResult

_MOST_READ_BYTES: Final = 16 << 20
_READY_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 5.0


async def start_process(state: Conversation, arguments: StartProcess) -> ToolResult:
    """Start it from a copy of the shell's state, and wait for its port where one is named."""
    state.check_process_room()
    process = await (await state.session()).start_process(arguments.command)
    name = state.add_process(process)
    if arguments.wait_for_port is None:
        return ToolResult(text=f"{name} runs. Read what it prints with read_output, end it with stop_process.")
    port, seconds = arguments.wait_for_port, min(arguments.timeout or _READY_SECONDS, state.limits.max_timeout)
    try:
        await process.wait_for_port(port, mode="tcp", timeout=seconds)
    except ProcessExitedBeforeReady:
        with suppress(ProcessWaitTimeout):
            await process.wait(_GRACE_SECONDS)
        reason = f"{name} ended before anything listened on port {port}."
    except ProcessReadyTimeout:
        reason = (
            f"{name} runs, but nothing listens on port {port} after {seconds:g} s. Wait with read_output, or end it."
        )
    else:
        return ToolResult(text=f"{name} runs and listens on port {port}.")
    return ToolResult(text=state.fit(f"{reason}\n{await _read(state, state.processes[name], 0)}"), is_error=True)


async def read_output(state: Conversation, arguments: ReadOutput) -> ToolResult:
    """Read a process, or an output that was cut."""
    kept = state.read_kept(arguments.id, arguments.offset or 0)
    if kept is not None:
        return ToolResult(text=kept)
    if arguments.id.startswith("output-"):
        raise ToolFailed(f"{arguments.id} is no longer kept: run the command again and write its output to a file")
    wait = _WAIT_SECONDS if arguments.wait is None else arguments.wait
    return ToolResult(text=state.fit(await _read(state, state.find_process(arguments.id), wait)))


async def stop_process(state: Conversation, arguments: StopProcess) -> ToolResult:
    """End its whole tree."""
    started = state.find_process(arguments.id)
    try:
        await started.process.terminate(_GRACE_SECONDS)
    except NotFound:
        started.has_ended = True
        return ToolResult(text=f"{arguments.id} was gone already.")
    return ToolResult(text=state.fit(await _read(state, started, _WAIT_SECONDS)))


async def _read(state: Conversation, started: StartedProcess, wait: float) -> str:
    """Read what is new; when nothing is, wait for the first of it."""
    capture = Capture(state.limits.max_output_bytes)
    try:
        end = await _drain(started, capture, follow=False)
        if end is None and not capture.total and wait:
            try:
                async with asyncio.timeout(wait):
                    end = await _drain(started, capture, follow=True)
            except TimeoutError:
                end = None
        if end is None and capture.total:
            end = await _drain(started, capture, follow=False)
    except NotFound:
        started.has_ended = True
        raise ToolFailed("the process is gone: the sandbox was stopped or restored meanwhile") from None
    return _describe(capture, end, wait)


async def _drain(started: StartedProcess, capture: Capture, *, follow: bool) -> Exit | None:
    """Read to the end of what is there or, with `follow`, the first output to come."""
    async with aclosing(started.process.logs(since=started.cursor, follow=follow)) as events:
        async for event in events:
            started.cursor = event.cursor
            match event:
                case Exit():
                    started.has_ended = True
                    return event
                case Gap():
                    capture.append(f"\n[{event.bytes} bytes are no longer kept]\n".encode())
                case Output():
                    capture.append(event.data)
            if follow or capture.total > _MOST_READ_BYTES:
                return None
    return None


def _describe(capture: Capture, end: Exit | None, wait: float) -> str:
    text = capture.getvalue().decode("utf-8", "replace").rstrip("\n")
    if capture.truncated:
        text += "\n[the middle was not kept: let the process write to a file]"
    if end is not None and end.outcome is Outcome.EXITED:
        return f"{text}\n[ended with exit code {end.exit_code}]".lstrip("\n")
    if end is not None:
        return f"{text}\n[{end.outcome}, exit code {end.exit_code}]".lstrip("\n")
    return f"{text or f'(nothing new after {wait:g} s)'}\n[it runs]"
