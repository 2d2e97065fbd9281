"""Inspect's own checks of a sandbox, and small evaluations with its mock model. Run by test_inspect.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import inspect_ai
import pytest
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import basic_agent
from inspect_ai.tool import bash
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403  # that is how it is used

from cove.integrations.inspect import CoveSandboxEnvironment
from cove.integrations.inspect_config import CoveSandboxConfig, read_config

pytestmark = pytest.mark.anyio
GUIDE = Path(__file__).parent.parent.parent / "docs/inspect.md"
IMAGE = os.environ.get("CHECKED_IMAGE", "host")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def sandbox_env(request):
    if request.node.name == "test_exec_as_user" and IMAGE == "host":
        pytest.skip("on the host's system a sandbox has one user")
    made = await CoveSandboxEnvironment.sample_init("check", CoveSandboxConfig(image=IMAGE), {"__sample_id__": 1})
    yield made["default"]
    await CoveSandboxEnvironment.sample_cleanup("check", None, made, False)
    assert not CoveSandboxEnvironment.living


def test_the_sandbox_is_found_by_its_name():
    assert registry_find_sandboxenv("cove") is CoveSandboxEnvironment
    assert CoveSandboxEnvironment.default_concurrency() >= len(os.sched_getaffinity(0))


async def test_output_beyond_the_limit_is_an_error_with_what_there_was(sandbox_env):
    with override_max_exec_output_size(1000), pytest.raises(OutputLimitExceededError) as raised:
        await sandbox_env.exec(["sh", "-c", "i=0; while [ $i -lt 999 ]; do i=$((i+1)); echo line; done"])
    assert "line" in raised.value.truncated_output


async def test_a_timeout_tells_what_was_printed_before(sandbox_env):
    with pytest.raises(TimeoutError) as raised:
        await sandbox_env.exec(["sh", "-c", "echo begun; sleep 60"], timeout=1)
    assert raised.value.truncated_output == "begun\n"


async def test_a_sandbox_that_is_gone_is_unavailable(sandbox_env):
    await sandbox_env.sandbox.destroy()
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.exec(["true"])


async def test_a_user_that_cannot_be_is_told(sandbox_env):
    with pytest.raises(SandboxUserUnsupportedError):
        await sandbox_env.exec(["true"], user="nobody-at-all")


async def test_people_connect_on_a_server_only(sandbox_env):
    if "COVE_URL" in os.environ:
        connection = await sandbox_env.connection()
        assert connection.command == f"cove shell --in {sandbox_env.sandbox.id}"
    else:
        with pytest.raises(NotImplementedError):
            await sandbox_env.connection()


async def test_a_setup_that_fails_leaves_nothing():
    config = CoveSandboxConfig(image=IMAGE, setup="echo broken >&2; exit 3")
    with pytest.raises(RuntimeError, match="broken"):
        await CoveSandboxEnvironment.sample_init("check", config, {})
    assert not CoveSandboxEnvironment.living


def test_a_configuration_is_a_file_or_a_model(tmp_path):
    for name, text in (
        ("a.toml", 'image = "x"'),
        ("a.yaml", "image: x\nnetwork: [example.test]"),
        ("a.json", '{"image": "x"}'),
    ):
        (tmp_path / name).write_text(text)
        assert read_config(str(tmp_path / name)).image == "x"
    (tmp_path / "a.txt").write_text("")
    for bad in (str(tmp_path / "a.txt"), 5):
        with pytest.raises(Exception, match=r"cove|Cove"):
            read_config(bad)
    with pytest.raises(ValueError, match="colour"):
        CoveSandboxConfig(colour="red")


def script(*commands, answer="forty-two"):
    outputs = [ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command}) for command in commands]
    outputs.append(ModelOutput.for_tool_call("mockllm/model", "submit", {"answer": answer}))
    for output in outputs:
        output.usage = ModelUsage()  # otherwise it counts tokens, by a file from the network
    return outputs


@pytest.mark.skipif(IMAGE != "host", reason="its tools need bash")
def test_an_evaluation_runs_with_files_setup_and_tools(tmp_path):
    samples = [
        Sample(
            id=number,
            input="What is the answer?",
            target="forty-two",
            files={"question.txt": f"question {number}"},
            setup="cp question.txt copied.txt; echo ready > ready.txt",
        )
        for number in range(2)
    ]
    config = CoveSandboxConfig(setup="echo prepared > prepared.txt", memory=256 << 20)
    outputs = script("cat prepared.txt ready.txt copied.txt; touch mine; ls | wc -l") * 2
    (log,) = inspect_ai.eval(
        inspect_ai.Task(
            dataset=samples,
            solver=basic_agent(tools=[bash(timeout=30)]),
            scorer=includes(),
            sandbox=SandboxEnvironmentSpec("cove", config),
        ),
        model=get_model("mockllm/model", custom_outputs=outputs),
        max_samples=1,
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    told = [message.text for sample in log.samples for message in sample.messages if message.role == "tool"]
    assert [each for each in told if "prepared" in each] == [
        f"prepared\nready\nquestion {number}5\n" for number in range(2)
    ]
    assert not CoveSandboxEnvironment.living


@pytest.mark.skipif(IMAGE != "host", reason="its tools need bash")
def test_the_evaluation_of_the_guide_runs(tmp_path):
    task, configuration = re.findall(r"```py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names = {}
    exec(task, names)
    exec(configuration, names)
    assert names["sandbox"].config.memory == 2 << 30
    outputs = script("wc -l < numbers.txt; test -w numbers.txt || echo read-only", answer="3")
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = inspect_ai.eval(names["count_lines"](), model=model, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert "3\nread-only\n" in [message.text for message in log.samples[0].messages]


@pytest.mark.skipif("COVE_URL" not in os.environ, reason="of a server")
async def test_what_was_left_on_a_server_is_cleaned_up_by_the_command():
    made = await CoveSandboxEnvironment.sample_init("check", None, {})
    (id,) = [each.sandbox.id for each in made.values()]
    command = [sys.executable, "-m", "inspect_ai", "sandbox", "cleanup", "cove", id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"Destroyed {id}" in done.stdout, done.stderr
    CoveSandboxEnvironment.living.clear()
