"""The guide to agents: each example runs as it stands, with the real SDK, against a model that follows a script."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from support.scripted_model import (
    Json,
    ScriptedModel,
    anthropic_message,
    openai_chat,
    openai_response,
    openai_text,
    scripted_model,
)

pytestmark = pytest.mark.pure

GUIDE = Path(__file__).parent.parent.parent / "docs/agents.md"
OPENAI, ANTHROPIC, CHAT, OWN = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
PROGRAM = {"path": "answer.py", "content": "print(6 * 7)\n"}


def run(example: str, folder: Path, turns: Sequence[Json] = ()) -> tuple[str, ScriptedModel]:
    script = folder / "example.py"
    script.write_text(example)
    with scripted_model(turns) as model:
        keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
        environment = {**os.environ, **keys, "OPENAI_BASE_URL": model.url, "ANTHROPIC_BASE_URL": model.url}
        end = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=100)
    assert (end.returncode, end.stderr) == (0, "")
    return end.stdout, model


@pytest.mark.parametrize("example", [OPENAI, ANTHROPIC, CHAT])
def test_an_agent_has_at_most_20_lines(example: str) -> None:
    assert len([line for line in example.splitlines() if line.strip()]) <= 20


def test_the_agent_of_openai_runs(tmp_path: Path) -> None:
    def call(name: str, arguments: Mapping[str, object]) -> Json:
        return {"type": "function_call", "call_id": name, "name": name, "arguments": json.dumps(arguments)}

    said, model = run(
        OPENAI,
        tmp_path,
        [
            openai_response(call("write_file", PROGRAM), call("no_such_tool", {})),
            openai_response(call("run_command", {"command": "python3 answer.py"})),
            openai_response(openai_text("It is 42.")),
        ],
    )
    assert said == "It is 42.\n"
    (_, second, third) = [cast("list[Json]", request["input"]) for request in model.requests]
    assert "there is no tool 'no_such_tool'" in str(second[-1]["output"])
    assert third[-1] == {"type": "function_call_output", "call_id": "run_command", "output": "42"}


def test_the_agent_of_anthropic_runs(tmp_path: Path) -> None:
    def use(name: str, input: Mapping[str, object]) -> Json:
        return {"type": "tool_use", "id": name, "name": name, "input": input}

    create = {"command": "create", "path": "answer.py", "file_text": "print(6 * 7)\n"}
    said, model = run(
        ANTHROPIC,
        tmp_path,
        [
            anthropic_message(use("str_replace_based_edit_tool", create)),
            anthropic_message(use("bash", {"command": "python3 answer.py"})),
            anthropic_message({"type": "text", "text": "It is 42."}),
        ],
    )
    assert said == "It is 42.\n"
    last = cast("list[Json]", model.requests[2]["messages"])[-1]
    (answer,) = cast("list[Json]", last["content"])
    assert answer["content"] == [{"type": "text", "text": "42"}]


def test_the_agent_of_chat_completions_runs(tmp_path: Path) -> None:
    function = {"name": "run_code", "arguments": '{"code": "6 * 7"}'}
    calls = [{"id": "1", "type": "function", "function": function}]
    said, model = run(CHAT, tmp_path, [openai_chat({"tool_calls": calls}), openai_chat({"content": "It is 42."})])
    assert said == "It is 42.\n"
    assert cast("list[Json]", model.requests[1]["messages"])[-1]["content"] == "42"


def test_the_loop_of_ones_own_runs(tmp_path: Path) -> None:
    said, _ = run(OWN, tmp_path)
    assert "The program prints 43." in said
