"""The tools whose shapes their makers fixed: bash, the text editors, shell, apply-patch; and answers in each shape."""

import json
from typing import cast

import pytest
from langchain_core.messages import ToolCall

from cove import AsyncSandbox
from cove.tools import ToolLimits, Toolset, langchain_tools

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 100
EDITOR = "str_replace_based_edit_tool"
Json = dict[str, object]


def test_tools_are_defined_in_every_shape(sandbox_of_nobody: AsyncSandbox) -> None:
    toolset = Toolset(sandbox_of_nobody, tools=["run_code", "bash", "text_editor_20250429", "shell", "apply_patch"])
    code, *_ = toolset.openai_responses()
    assert (code["type"], code["name"]) == ("function", "run_code")
    assert toolset.openai_responses()[3:] == [
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "apply_patch"},
    ]
    assert toolset.anthropic()[1:3] == [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250429", "name": EDITOR},
    ]
    assert cast("Json", toolset.anthropic()[0]["input_schema"])["required"] == ["code"]
    chat = [cast("Json", tool["function"]) for tool in toolset.openai_chat()]
    assert [function["name"] for function in chat] == ["run_code", "bash", EDITOR, "shell", "apply_patch"]
    assert all(cast("Json", function["parameters"])["type"] == "object" for function in chat)
    assert "$ref" not in json.dumps(chat)


async def test_bash_keeps_its_shell_until_it_is_restarted() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, tools=["bash"]) as toolset:
        assert (await toolset.call("bash", {"command": "cd /tmp; x=1"})).text == "(no output)"
        assert (await toolset.call("bash", {"command": "pwd; echo $x"})).text == "/tmp\n1"
        failed = await toolset.call("bash", {"command": "ls missing"})
        assert failed.is_error
        assert failed.text.endswith("[exit code 2]")
        assert not (await toolset.call("bash", {"restart": True})).is_error
        assert (await toolset.call("bash", {"command": "pwd"})).text == "/workspace"
        assert (await toolset.call("bash", {})).is_error


async def test_the_text_editor_views_creates_replaces_inserts_and_undoes() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, tools=["str_replace_editor"]) as toolset:

        async def edit(command: str, path: str = "a.txt", **fields: object) -> str:
            result = await toolset.call("str_replace_editor", {"command": command, "path": path, **fields})
            return f"Error: {result.text}" if result.is_error else result.text

        await edit("create", file_text="one\ntwo\nthree\n")
        assert await edit("view") == "     1\tone\n     2\ttwo\n     3\tthree\n     4\t"
        assert await edit("view", view_range=[2, 3]) == "     2\ttwo\n     3\tthree"
        assert await edit("view", view_range=[3, -1]) == "     3\tthree\n     4\t"
        assert "     2\tTWO\n" in await edit("str_replace", old_str="two", new_str="TWO")
        await edit("insert", insert_line=1, insert_text="between\n")
        assert await sandbox.files.read_text("a.txt") == "one\nbetween\nTWO\nthree\n"
        await edit("insert", insert_line=4, new_str="last")
        assert await sandbox.files.read_text("a.txt") == "one\nbetween\nTWO\nthree\nlast\n"
        assert "a.txt" in await edit("view", path=".")
        for _ in range(3):
            await edit("undo_edit")
        assert await sandbox.files.read_text("a.txt") == "one\ntwo\nthree\n"
        await edit("undo_edit")
        assert not await sandbox.files.exists("a.txt")
        assert "no edit" in await edit("undo_edit")


async def test_the_text_editor_views_a_directory_two_levels_deep() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, tools=["text_editor_20250728"]) as toolset:
        for path in ("a.txt", ".hidden/x", "one/b.txt", "one/.c", "one/two/d.txt", "closed/e"):
            await sandbox.files.write(path, "x")
        await sandbox.exec(["chmod", "0", "closed"])
        shown = (await toolset.call(EDITOR, {"command": "view", "path": "/workspace"})).text
        inside = ["a.txt  1", "closed/", "one/", "one/b.txt  1", "one/two/"]
        assert shown.splitlines() == ["/workspace", *(f"/workspace/{each}" for each in inside)]


async def test_the_text_editor_shows_as_many_characters_as_it_is_defined_with() -> None:
    limits = ToolLimits(max_characters=500)
    async with (
        AsyncSandbox.create() as sandbox,
        Toolset(sandbox, tools=["text_editor_20250728"], limits=limits) as toolset,
    ):
        (definition,) = toolset.anthropic()
        assert definition["max_characters"] == 500
        await sandbox.files.write("long", "line\n" * 1000)
        shown = (await toolset.call(EDITOR, {"command": "view", "path": "long"})).text
        assert len(shown) < 700
        assert "characters left out here: view fewer lines with view_range]" in shown
        assert shown.startswith("     1\tline\n")
        assert shown.endswith("  1000\tline\n  1001\t")


async def test_the_text_editor_says_what_is_wrong() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, tools=["text_editor_20250728"]) as toolset:
        await sandbox.files.write("a.txt", "x\nx\n")
        wrong: list[tuple[Json, str]] = [
            ({"command": "view", "path": "missing"}, "list_files"),
            ({"command": "view", "view_range": [9, 10]}, "view_range must be"),
            ({"command": "view", "view_range": [1]}, "view_range must be"),
            ({"command": "create"}, "needs file_text"),
            ({"command": "str_replace"}, "needs old_str"),
            ({"command": "str_replace", "old_str": "x"}, "2 times"),
            ({"command": "str_replace", "old_str": "y"}, "copy it exactly"),
            ({"command": "insert", "insert_line": 1}, "needs insert_line"),
            ({"command": "insert", "insert_line": 3, "insert_text": ""}, "from 0 to 2"),
            ({"command": "erase"}, "Invalid enum value"),
        ]
        for fields, advice in wrong:
            result = await toolset.call(EDITOR, {"path": "a.txt", **fields})
            assert result.is_error
            assert advice in result.text
        await sandbox.files.write("a.png", PNG)
        assert (await toolset.call(EDITOR, {"command": "view", "path": "a.png"})).images[0].data == PNG


async def test_a_patch_is_applied_as_a_whole_or_not_at_all() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, tools=["apply_patch"]) as toolset:
        await sandbox.files.write("a.py", "x = 1\ny = 2\n")
        await sandbox.files.write("b.py", "z = 3\n")
        patch = (
            "*** Begin Patch\n*** Update File: a.py\n@@ x = 1\n-y = 2\n+y = 4\n*** Delete File: b.py\n"
            "*** Add File: new/c.py\n+w = 5\n{}*** End Patch\n"
        )
        for wrong, advice in [
            ("*** Delete File: missing\n", "missing"),
            ("*** Add File: a.py\n+\n", "two sections"),
            ("*** Add File: /etc/hosts\n+\n", "is there already"),
            ("*** Update File: missing.py\n*** Move to: a.py\n", "is there already"),
            ("*** Update File: b.py\n@@\n-no\n", "two sections"),
        ]:
            refused = await toolset.call("apply_patch", {"patch": patch.format(wrong)})
            assert refused.is_error
            assert advice in refused.text
            assert await sandbox.files.read_text("a.py") == "x = 1\ny = 2\n"
            assert not await sandbox.files.exists("new")
        done = await toolset.call("apply_patch", {"patch": patch.format("")})
        assert done.text == "a.py is changed.\nb.py is deleted.\nnew/c.py is added."
        assert await sandbox.files.read_text("a.py") == "x = 1\ny = 4\n"
        moved = await toolset.call(
            "apply_patch",
            {"patch": "*** Begin Patch\n*** Update File: a.py\n*** Move to: d.py\n@@\n-x = 1\n*** End Patch"},
        )
        assert moved.text == "d.py is changed, and was a.py before."
        names = [entry.name for entry in await sandbox.files.list(recursive=True)]
        assert names == ["d.py", "new", "c.py"]


async def test_the_items_of_a_response_are_answered() -> None:
    limits = ToolLimits(max_characters=400)
    tools = ["shell", "apply_patch", "run_code", "read_file"]
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, tools=tools, limits=limits) as toolset:
        await sandbox.files.write("a.png", PNG)
        output: list[Json] = [
            {"type": "reasoning", "summary": []},
            {
                "type": "shell_call",
                "call_id": "1",
                "action": {
                    "commands": ["echo a; echo b >&2", "sleep 1000"],
                    "timeout_ms": 300,
                    "max_output_length": 99,
                },
            },
            {"type": "shell_call", "call_id": "2", "action": {"commands": ["seq 1000"], "timeout_ms": None}},
            {"type": "shell_call", "call_id": "3", "action": {}},
            {
                "type": "apply_patch_call",
                "call_id": "4",
                "operation": {"type": "create_file", "path": "a.txt", "diff": "+one\n+two\n"},
            },
            {
                "type": "apply_patch_call",
                "call_id": "5",
                "operation": {"type": "update_file", "path": "a.txt", "diff": "@@\n one\n-two\n+2\n"},
            },
            {"type": "apply_patch_call", "call_id": "6", "operation": {"type": "delete_file", "path": "none"}},
            {"type": "apply_patch_call", "call_id": "7", "operation": {"type": "rename", "path": "none"}},
            {"type": "function_call", "call_id": "8", "name": "read_file", "arguments": '{"path": "a.png"}'},
            {"type": "function_call", "call_id": "9", "name": "run_code", "arguments": '{"code": "1"}'},
        ]
        answers = await toolset.answer_openai_responses(output)
        assert [answer["call_id"] for answer in answers] == [str(number) for number in range(1, 10)]
        first, second, third, *patches, image, code = answers
        assert first["max_output_length"] == 99
        ran, slow = cast("list[Json]", first["output"])
        assert ran == {"stdout": "a\n", "stderr": "b\n", "outcome": {"type": "exit", "exit_code": 0}}
        assert slow["outcome"] == {"type": "timeout"}
        (long,) = cast("list[Json]", second["output"])
        assert "characters left out" in str(long["stdout"])
        assert len(str(long["stdout"])) < 500
        (wrong,) = cast("list[Json]", third["output"])
        assert "malformed" in str(wrong["stderr"])
        assert [patch["status"] for patch in patches] == ["completed", "completed", "failed", "failed"]
        assert await sandbox.files.read_text("a.txt") == "one\n2\n"
        assert [part["type"] for part in cast("list[Json]", image["output"])] == ["input_text", "input_image"]
        assert code["output"] == "1"


async def test_the_calls_of_a_chat_are_answered_with_images_at_the_end() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        await sandbox.files.write("a.png", PNG)
        calls = [
            {"id": "1", "function": {"name": "read_file", "arguments": '{"path": "a.png"}'}},
            {"id": "2", "function": {"name": "run_command", "arguments": '{"command": "echo hello"}'}},
            {"id": "3"},
        ]
        answers = await toolset.answer_openai_chat(calls)
        assert [(answer["role"], answer.get("tool_call_id")) for answer in answers] == [
            ("tool", "1"),
            ("tool", "2"),
            ("tool", "3"),
            ("user", None),
        ]
        assert answers[1]["content"] == "hello"
        assert "there is no tool" in str(answers[2]["content"])
        assert [part["type"] for part in cast("list[Json]", answers[3]["content"])] == ["text", "image_url"]


async def test_the_blocks_of_a_message_are_answered() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        await sandbox.files.write("a.png", PNG)
        content = [
            {"type": "text", "text": "I look at it."},
            {"type": "tool_use", "id": "1", "name": "read_file", "input": {"path": "a.png"}},
        ]
        (answer,) = await toolset.answer_anthropic(content)
        assert (answer["type"], answer["tool_use_id"], answer["is_error"]) == ("tool_result", "1", False)
        assert [part["type"] for part in cast("list[Json]", answer["content"])] == ["text", "image"]


async def test_langchain_calls_the_tools() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox) as toolset:
        tools = {tool.name: tool for tool in langchain_tools(toolset)}
        assert len(tools) == 13
        message = await tools["run_command"].ainvoke(
            ToolCall(name="run_command", args={"command": "echo hello"}, id="1", type="tool_call")
        )
        assert message.tool_call_id == "1"
        assert message.content == [{"type": "text", "text": "hello"}]
        wrong = await tools["read_file"].ainvoke({"path": "missing"})
        assert "list_files" in wrong[0]["text"]


@pytest.fixture
def sandbox_of_nobody() -> AsyncSandbox:
    """Definitions need no sandbox that runs."""
    return cast("AsyncSandbox", object())


async def test_a_patch_that_fails_midway_says_which_files_are_changed() -> None:
    async with AsyncSandbox.create() as sandbox, Toolset(sandbox, tools=["apply_patch"]) as toolset:
        (await sandbox.exec("mkdir shut; chmod 555 shut")).check()
        patch = "*** Begin Patch\n*** Add File: a.py\n+x\n*** Add File: shut/b.py\n+y\n*** End Patch\n"
        failed = await toolset.call("apply_patch", {"patch": patch})
        assert failed.is_error
        assert failed.text.endswith("Of the files of this patch these are changed: a.py")
        assert await sandbox.files.read_text("a.py") == "x\n"
