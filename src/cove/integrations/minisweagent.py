"""The environment class of mini-swe-agent: each of its commands runs in one sandbox, without a state of its own."""

import os
from typing import Literal

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict

from cove.blocking import Sandbox
from cove.errors import CoveError
from cove.model import ExecResult, Limits, NetworkPolicy

# The first line of the output of a command that ends the task.
_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class CoveEnvironmentConfig(BaseModel):
    """The sandbox, and how commands run in it.

    `network` is none, internet, or the names that may be reached. `forward_env` are variables of the host's. With `url`
    it is on that server, as with COVE_URL; its key is COVE_API_KEY.
    """

    model_config = ConfigDict(extra="forbid")

    image: str = "host"
    user: str | None = None
    cwd: str = "/workspace"
    env: dict[str, str] = {}
    forward_env: list[str] = []
    timeout: int = 30
    network: Literal["none", "internet"] | list[str] = "none"
    memory: int | None = None
    cpus: float | None = None
    lifetime: float | None = 2 * 3600.0
    url: str | None = None


class CoveEnvironment:
    """Made with its sandbox; `cleanup` destroys that."""

    def __init__(self, **fields: object) -> None:
        self.config = CoveEnvironmentConfig.model_validate(fields)
        config = self.config
        network = config.network if isinstance(config.network, str) else NetworkPolicy(allow=tuple(config.network))
        forwarded = {name: os.environ[name] for name in config.forward_env if name in os.environ}
        self.sandbox: Sandbox | None = Sandbox.create(
            image=config.image,
            user=config.user,
            env={**forwarded, **config.env},
            network=network,
            limits=Limits(memory=config.memory, cpus=config.cpus),
            lifetime=config.lifetime,
            url=config.url,
        )

    def execute(self, action: dict[str, object], cwd: str = "", *, timeout: int | None = None) -> dict[str, object]:
        """Run a command; both of its streams are the output, in their order."""
        command = str(action.get("command", ""))
        assert self.sandbox is not None, "the environment was cleaned up"
        try:
            result = self.sandbox.exec(
                ["bash", "-c", 'exec 2>&1; eval "$1"', "bash", command],
                cwd=cwd or self.config.cwd,
                timeout=timeout or self.config.timeout,
            )
            output = _output(result, timeout or self.config.timeout)
        except CoveError as error:
            output = _failure("", f"{type(error).__name__}: {error}", type(error).__name__)
        _check_finished(output)
        return output

    def get_template_vars(self, **more: object) -> dict[str, object]:
        """Give the prompt what it may name."""
        merged: dict[str, object] = recursive_merge(self.config.model_dump(), more)
        return merged

    def serialize(self) -> dict[str, object]:
        """Describe the environment for the trajectory."""
        kind = f"{self.__class__.__module__}.{self.__class__.__name__}"
        config = {"environment": self.config.model_dump(mode="json"), "environment_type": kind}
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        """Destroy the sandbox. Idempotent."""
        if self.sandbox is not None:
            sandbox, self.sandbox = self.sandbox, None
            sandbox.destroy()


def _output(result: ExecResult, timeout: float) -> dict[str, object]:
    if result.timed_out:
        return _failure(result.stdout, f"the command timed out after {timeout} seconds", "TimeoutExpired")
    if result.exit_code is None:
        return _failure(result.stdout, "the sandbox was lost while the command ran", "SandboxLost")
    return {"output": result.stdout, "returncode": result.exit_code, "exception_info": ""}


def _failure(output: str, reason: str, kind: str) -> dict[str, object]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {reason}",
        "extra": {"exception_type": kind, "exception": reason},
    }


def _check_finished(output: dict[str, object]) -> None:
    """Raise Submitted for a command that says that the task is done."""
    lines = str(output["output"]).lstrip().splitlines(keepends=True)
    if lines and lines[0].strip() == _DONE and output["returncode"] == 0:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})
