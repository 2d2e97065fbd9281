"""Tools for a model: what they do, what they say when something is wrong, and that nothing is raised or left."""

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest
from support.inside import commands_inside
from support.serving import MakeSandbox
from support.upstream import running_upstream

from cove import AsyncSandbox, AsyncSnapshot, NetworkPolicy, Sandbox, SandboxDestroyed, ValidationFailed
from cove.blocking.portal import get_portal
from cove.tools import BlockingToolset, ToolLimits, ToolResult, Toolset
from cove.tools.conversation import Conversation

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def portal() -> None:
    """The loop of this program lives as long as the program."""
    get_portal()


PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 100


async def test_a_conversation_uses_every_general_tool(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox, Toolset(sandbox) as toolset:

        async def ask(tool: str, **arguments: object) -> str:
            result = await toolset.call(tool, json.dumps(arguments))
            assert not result.is_error, result.text
            return result.text

        assert await ask("run_command", command="mkdir demo && cd demo && x=7") == "(no output)"
        assert await ask("write_file", path="answer.py", content="print(6 * 7)\n") == "answer.py is written: 13 bytes."
        assert await ask("run_command", command="echo $x; python3 answer.py; exit_code() { return 3; }; exit_code") == (
            "7\n42\n[exit code 3]"
        )
        snapshot = (await ask("snapshot")).split()[3].rstrip(".")
        await ask("edit_file", path="answer.py", old="6 * 7", new="43")
        assert await ask("read_file", path="answer.py") == "print(43)"
        assert await ask("list_files", path="/workspace", recursive=True) == (
            "/workspace/demo/\n/workspace/demo/answer.py  10"
        )
        assert await ask("search_files", pattern="pr.nt", glob="*.py") == "/workspace/demo/answer.py:1: print(43)"
        assert "process-1 runs" in await ask("start_process", command="echo up; sleep 1000")
        assert await ask("read_output", id="process-1") == "up\n[it runs]"
        assert "killed" in await ask("stop_process", id="process-1")
        assert await ask("run_code", code="y = 5") == "(no output)"
        assert await ask("run_code", code="print('z'); y + 1") == "z\n6"
        await ask("restore", id=snapshot)
        assert await ask("run_command", command="pwd; echo $x; cat answer.py") == "/workspace/demo\n7\nprint(6 * 7)"
        assert "NameError" in await ask("run_code", code="y")


async def test_a_server_is_started_and_shown() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        started = await toolset.call(
            "start_process", {"command": "python3 -m http.server 8000", "wait_for_port": 8000, "timeout": 60}
        )
        assert started.text == "process-1 runs and listens on port 8000."
        first = await toolset.call("expose_port", {"port": 8000})
        assert "http" in first.text
        assert await toolset.call("expose_port", {"port": 8000}) == first
        ended = await toolset.call("start_process", {"command": "echo no; exit 3", "wait_for_port": 9000})
        assert ended.is_error
        assert ended.text == "process-2 ended before anything listened on port 9000.\nno\n[ended with exit code 3]"


async def test_figures_come_back_as_images() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        code = f"""
from IPython.display import Image, display
display(Image(data={PNG!r}, format="png"))
display({{"image/png": "bm90IGFuIGltYWdl"}}, raw=True)
1
"""
        result = await toolset.call("run_code", {"code": code})
        assert result.text == "[image 1]\n[an image that is none: it was left out]\n1"
        assert [(image.data, image.media_type) for image in result.images] == [(PNG, "image/png")]
        await sandbox.files.write("figure.png", PNG)
        seen = await toolset.call("read_file", {"path": "figure.png"})
        assert seen.images == result.images


async def test_long_output_is_cut_and_can_be_read_on() -> None:
    limits = ToolLimits(max_characters=1000)
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, limits=limits) as toolset:
        result = await toolset.call("run_command", {"command": "seq 10000; echo end >&2; (exit 4)"})
        assert len(result.text) < 1200
        assert result.text.startswith("1\n2\n3\n")
        assert result.text.endswith("\n9999\n10000\n[stderr]\nend\n[exit code 4]")
        text, follows = "", json.loads(result.text.split("read_output with ")[1].split("]\n")[0]) | {"offset": 0}
        while follows:
            part = (await toolset.call("read_output", follows)).text
            assert len(part) < 1200
            content, _, note = part.rpartition("\n[")
            text += content
            follows = json.loads(note.partition(": ")[2][:-1]) if note != "the end]" else None
        assert text == "".join(f"{number}\n" for number in range(1, 10001)) + "[stderr]\nend\n[exit code 4]"


async def test_what_was_cut_is_kept_within_a_budget() -> None:
    state = Conversation(cast("AsyncSandbox", None), ToolLimits())  # nothing here asks the sandbox
    for letter in "abcde":
        assert "read_output" in state.fit(letter * (4 << 20))
    assert state.read_kept("output-1", 0) is None
    assert (state.read_kept("output-2", 0) or "").startswith("bbb")
    state.fit("f" * (100 << 20))
    kept = state.read_kept("output-6", (2 << 20) - 10) or ""
    assert kept.startswith(f"{'f' * 10}\n[{96 << 20} characters were not kept: ask for less at once]\nfff")


async def test_more_output_than_is_kept_is_said() -> None:
    limits = ToolLimits(max_characters=1000, max_output_bytes=10_000)
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, limits=limits) as toolset:
        result = await toolset.call("run_command", {"command": "yes | head -c 1000000"})
        assert "was not kept: write it to a file" in result.text
        await toolset.call("start_process", {"command": "yes | head -c 40000000"})
        await (await sandbox.list_processes())[-1].wait()
        result = await toolset.call("read_output", {"id": "process-2"})
        assert "was not kept" in result.text
        assert len(result.text) < 1300


async def test_a_refused_name_is_told_from_one_that_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_upstream(tmp_path) as upstream:
        monkeypatch.setenv("COVE_RESOLVER", upstream.resolver)
        policy = NetworkPolicy(allow=["missing.example"])
        async with AsyncSandbox.create(network=policy) as sandbox, Toolset(sandbox) as toolset:
            result = await toolset.call("run_command", {"command": "curl -s other.example; curl -so f missing.example"})
    assert result.text == (
        "(no output)\n"
        "[The network policy refused other.example: ask the user to allow it.]\n"
        "[Network: missing.example has no address.]"
    )


async def test_a_timeout_leaves_the_shell_and_the_notebook_usable() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        await toolset.call("run_command", {"command": "cd /tmp; x=1"})
        slow = await toolset.call("run_command", {"command": "echo begun; sleep 1000", "timeout": 0.3})
        assert slow.text.startswith("begun\n[ended after 0.3 s, with everything it started; the shell lives on.")
        assert (await toolset.call("run_command", {"command": "pwd; echo $x"})).text == "/tmp\n1"
        await toolset.call("run_code", {"code": "a = 1"})
        slow = await toolset.call("run_code", {"code": "import time; time.sleep(1000)", "timeout": 0.3})
        assert "[interrupted after 0.3 s; variables are kept." in slow.text
        assert (await toolset.call("run_code", {"code": "a"})).text == "1"
        assert "sleep 1000" not in await commands_inside(sandbox)


async def test_a_shell_and_a_notebook_that_end_are_replaced() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        await toolset.call("run_command", {"command": "cd /tmp"})
        ended = await toolset.call("run_command", {"command": "echo bye; exit 5"})
        assert "The shell has ended with exit code 5" in ended.text
        assert (await toolset.call("run_command", {"command": "pwd"})).text == "/workspace"
        crashed = await toolset.call("run_code", {"code": "import os; os._exit(3)"})
        assert crashed.is_error
        assert "exit code 3" in crashed.text
        assert (await toolset.call("run_code", {"code": "1 + 1"})).text == "2"


WRONG: list[tuple[str, object, str]] = [
    ("no_such_tool", {}, "there are: run_command"),
    ("run_command", "{", "Its arguments are {command, timeout?}"),
    ("run_command", {"command": "true", "shell": "zsh"}, "unknown field `shell`"),
    ("run_command", None, "Expected `object`"),
    ("run_command", {"command": "a\0b"}, "Error: "),
    ("run_command", {"command": "echo \ud800"}, "Error: "),
    ("read_file", {"path": "missing"}, "look with list_files"),
    ("read_file", {"path": "."}, "use list_files"),
    ("read_file", {"path": "/usr/bin/env"}, "is a binary file"),
    ("read_file", {"path": "/etc/hosts", "start_line": 10_000}, "start_line must not be beyond"),
    ("write_file", {"path": "/proc/version", "content": ""}, "Error: "),
    ("edit_file", {"path": "/etc/hosts", "old": "no such text", "new": ""}, "Error: "),
    ("list_files", {"path": "missing"}, "look with list_files"),
    ("search_files", {"pattern": "("}, "Error: "),
    ("read_output", {"id": "process-9"}, "begin with start_process"),
    ("read_output", {"id": "output-9"}, "no longer kept"),
    ("stop_process", {"id": "../.."}, "begin with start_process"),
    ("restore", {"id": "none"}, "begin with snapshot"),
    ("expose_port", {"port": 0}, "Expected `int` >= 1"),
    ("run_code", {"code": "1", "language": "cobol"}, "Invalid enum value"),
]


async def test_what_a_model_does_wrong_is_a_result_that_says_what_to_do() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        for tool, arguments, advice in WRONG:
            result = await toolset.call(tool, arguments)
            assert result.is_error, tool
            assert advice in result.text


async def test_what_the_machine_does_wrong_is_raised() -> None:
    async with AsyncSandbox.create() as sandbox:
        toolset = Toolset(sandbox)
        await toolset.call("run_command", {"command": "true"})
    with pytest.raises(SandboxDestroyed):
        await toolset.call("run_command", {"command": "true"})
    await toolset.close()


async def test_a_closed_toolset_leaves_nothing_behind() -> None:
    async with AsyncSandbox.create() as sandbox:
        async with Toolset(sandbox) as toolset:
            await toolset.call("start_process", {"command": "sleep 1000"})
            await toolset.call("run_code", {"code": "import subprocess; subprocess.Popen(['sleep', '1000'])"})
            snapshot = (await toolset.call("snapshot", {})).text.split()[3].rstrip(".")
        assert await sandbox.list_sessions() == []
        assert await sandbox.list_code_contexts() == []
        assert "sleep 1000" not in await commands_inside(sandbox)
        assert snapshot not in [each.id for each in await AsyncSnapshot.list()]
        await toolset.close()
        with pytest.raises(ValidationFailed, match="is closed"):
            await toolset.call("run_command", {"command": "true"})


async def test_a_cancelled_call_ends_its_command_and_the_shell_lives_on() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        await toolset.call("run_command", {"command": "cd /tmp"})
        call = asyncio.ensure_future(toolset.call("run_command", {"command": "touch started; sleep 1000"}))
        await sandbox.exec("until [ -e /tmp/started ]; do sleep 0.01; done")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await toolset.call("run_command", {"command": "pwd"})).text == "/tmp"
        assert "sleep 1000" not in await commands_inside(sandbox)


async def test_calls_at_once_share_one_shell() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        calls = [toolset.call("run_command", {"command": "i=$((i + 1)); echo $i"}) for _ in range(8)]
        texts = [result.text for result in await asyncio.gather(*calls)]
        assert sorted(texts) == [str(number) for number in range(1, 9)]
        assert len(await sandbox.list_sessions()) == 1


def test_the_blocking_form_does_the_same() -> None:
    with Sandbox.create() as sandbox, BlockingToolset(sandbox, tools=["run_command", "bash"]) as toolset:
        assert [tool.name for tool in toolset.tools] == ["run_command", "bash"]
        assert toolset.call("run_command", {"command": "echo hello"}) == ToolResult(text="hello")
        turn = [{"type": "tool_use", "id": "1", "name": "bash", "input": {"command": "false"}}]
        assert toolset.answer_anthropic(turn)[0]["is_error"] is True
        assert toolset.answer_openai_responses([]) == toolset.answer_openai_chat(None) == []
        assert len(toolset.anthropic()) == len(toolset.openai_chat()) == len(toolset.openai_responses()) == 2
