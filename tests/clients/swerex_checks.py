"""What SWE-ReX's own tests leave out, and mini-swe-agent with a scripted model. Copied by test_swerex.py."""

import pytest
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashInterruptAction,
    CloseBashSessionRequest,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)

from cove import Sandbox
from cove.integrations.swerex import CoveDeployment, CoveDeploymentConfig

from .conftest import _Action as A
from .conftest import _Command as C


async def test_interactive_and_normal_commands_take_turns(runtime_with_default_session):
    run = runtime_with_default_session.run_in_session
    for _ in range(2):
        await run(A(command="python", is_interactive_command=True, expect=[">>> "]))
        told = await run(A(command="print('a' + 'b')", is_interactive_command=True, expect=[">>> "]))
        assert "ab" in told.output
        assert told.expect_string == ">>> "
        await run(A(command="quit()\n", is_interactive_quit=True))
        assert (await run(A(command="echo plain"))).output == "plain\n"


async def test_what_a_command_does_to_the_prompt_or_the_echo_does_not_last(runtime_with_default_session):
    run = runtime_with_default_session.run_in_session
    await run(A(command="PS1='$ '; stty echo; export x=1; cd /tmp; f() { echo f; }"))
    told = await run(A(command="echo $x; pwd; f; (exit 3)", check="silent"))
    assert (told.output, told.exit_code) == ("1\n/tmp\nf\n", 3)


async def test_the_end_of_a_command_that_timed_out_is_not_that_of_the_next(runtime_with_default_session):
    run = runtime_with_default_session.run_in_session
    with pytest.raises(CommandTimeoutError):
        await run(A(command="until [ -e go ]; do sleep 0.01; done; echo late", timeout=0.1))
    await runtime_with_default_session.execute(C(command="touch go", shell=True, cwd="/workspace"))
    assert "next\n" in (await run(A(command="echo next"))).output
    assert (await run(A(command="echo third"))).output == "third\n"


async def test_a_loop_of_the_shell_is_interrupted(runtime_with_default_session):
    run = runtime_with_default_session.run_in_session
    with pytest.raises(CommandTimeoutError):
        await run(A(command="while :; do :; done", timeout=0.1))
    await run(BashInterruptAction(timeout=5))
    assert (await run(A(command="echo on"))).output == "on\n"


async def test_a_shell_that_has_ended_says_so(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest(session="s", startup_timeout=20))
    with pytest.raises(SessionExistsError):
        await remote_runtime.create_session(CreateBashSessionRequest(session="s"))
    for _ in range(2):
        with pytest.raises(NoExitCodeError):
            await remote_runtime.run_in_session(A(command="exit 3", session="s"))
    await remote_runtime.close_session(CloseBashSessionRequest(session="s"))


async def test_files_are_sourced_at_the_start(remote_runtime):
    await remote_runtime.write_file(WriteFileRequest(path="/workspace/rc", content="echo hello; PS1=x; y=5"))
    request = CreateBashSessionRequest(session="s", startup_source=["/workspace/rc"], startup_timeout=20)
    assert (await remote_runtime.create_session(request)).output == "hello\n"
    assert (await remote_runtime.run_in_session(A(command="echo $y", session="s"))).output == "5\n"


async def test_much_output_comes_whole(runtime_with_default_session):
    told = await runtime_with_default_session.run_in_session(A(command="seq 100000"))
    assert told.output == "".join(f"{number}\n" for number in range(1, 100001))


async def test_streams_are_merged_in_their_order_and_checks_raise(remote_runtime):
    command = C(command="echo a; echo b >&2; echo c", shell=True, merge_output_streams=True)
    merged = await remote_runtime.execute(command)
    assert (merged.stdout, merged.stderr) == ("a\nb\nc\n", "")
    with pytest.raises(NonZeroExitCodeError, match="because"):
        await remote_runtime.execute(C(command="exit 3", shell=True, check=True, error_msg="because"))
    with pytest.raises(IsADirectoryError):
        await remote_runtime.read_file(ReadFileRequest(path="/tmp"))


async def test_a_deployment_is_started_and_stopped(remote_runtime):
    deployment = CoveDeploymentConfig(env={"A": "1"}).get_deployment()
    with pytest.raises(DeploymentNotStartedError):
        await deployment.is_alive()
    await deployment.start()
    runtime = deployment.runtime
    assert await deployment.is_alive()
    assert (await runtime.execute(C(command="echo $A", shell=True))).stdout == "1\n"
    await deployment.stop()
    await deployment.stop()
    assert not await runtime.is_alive()
    with pytest.raises(DeploymentStartupError):
        await CoveDeployment(image="no-such-image:1").start()
    with pytest.raises(ValueError, match="colour"):
        CoveDeployment(colour="red")


def make_environment(**fields):
    return get_environment({"environment_class": "cove.integrations.minisweagent.CoveEnvironment", **fields})


def test_the_environment_of_mini_swe_agent_runs_commands():
    environment = make_environment(env={"A": "1"}, timeout=20)
    try:
        told = environment.execute({"command": "echo $A; echo b >&2; pwd; exit 3"})
        assert told == {"output": "1\nb\n/workspace\n", "returncode": 3, "exception_info": ""}
        late = environment.execute({"command": "echo begun; sleep 60"}, timeout=1)
        assert (late["output"], late["returncode"]) == ("begun\n", -1)
        assert "timed out" in late["exception_info"]
        with pytest.raises(Submitted):
            environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo done"})
        assert environment.get_template_vars(more=1)["more"] == 1
        assert environment.serialize()["info"]["config"]["environment"]["image"] == "host"
    finally:
        environment.cleanup()
        environment.cleanup()
    assert Sandbox.list() == []


def test_mini_swe_agent_solves_a_task_with_a_scripted_model():
    commands = [
        "echo 42 > answer",
        "cat answer; echo COMPLETE",
        "printf 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\\n'; cat answer",
    ]
    model = DeterministicModel(outputs=[make_output("next", [{"command": command}]) for command in commands])
    environment = make_environment()
    try:
        agent = DefaultAgent(model, environment, system_template="help", instance_template="{{task}}", cost_limit=0)
        agent.run("Find the answer")
        assert agent.messages[-1]["extra"]["submission"] == "42\n"
    finally:
        environment.cleanup()
