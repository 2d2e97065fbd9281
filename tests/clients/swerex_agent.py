"""Drives a deployment on a server as SWE-agent does: a repository, tools, a replayed trajectory, a patch."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from swerex.exceptions import CommandTimeoutError, DeploymentStartupError, NonZeroExitCodeError
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from cove import AsyncSandbox
from cove.integrations.swerex import CoveDeploymentConfig

EDIT = """#!/bin/bash
sed -i "s/$2/$3/" "$1" && echo "edited $1 with $SETTING"
"""
# What a model said, step by step, and what it must be shown.
TRAJECTORY = [
    ("ls", "add.py\n"),
    ("python3 -c 'import add; print(add.add(2, 2))'", "0\n"),
    ("edit add.py 'a - b' 'a + b'", "edited add.py with on\n"),
    ("python3 -c 'import add; print(add.add(2, 2))'", "4\n"),
]


def make_repository(path: Path) -> None:
    path.mkdir()
    (path / "add.py").write_text("def add(a, b):\n    return a - b\n")
    git = ["git", "-C", str(path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)


async def main(url: str, directory: Path) -> None:
    make_repository(directory / "repo")
    tools = directory / "tools"
    (tools / "bin").mkdir(parents=True)
    (tools / "bin/edit").write_text(EDIT)
    deployment = CoveDeploymentConfig(url=url, env={"MADE": "on a server"}).get_deployment()
    await deployment.start()
    try:
        runtime = deployment.runtime
        assert len(await AsyncSandbox.list(url=url)) == 1
        await runtime.create_session(CreateBashSessionRequest(startup_source=[], startup_timeout=20))

        async def run(command: str, check: str = "raise", timeout: float = 30) -> str:
            return (await runtime.run_in_session(BashAction(command=command, check=check, timeout=timeout))).output

        for source, target in ((directory / "repo", "/workspace/repo"), (tools, "/workspace/tools")):
            await runtime.upload(UploadRequest(source_path=str(source), target_path=target))
        await runtime.execute(Command(command="chmod +x /workspace/tools/bin/*", shell=True, check=True))
        await run("export PATH=/workspace/tools/bin:$PATH SETTING=on PYTHONDONTWRITEBYTECODE=1; cd /workspace/repo")
        await run("git status && git restore . && git reset --hard && git clean -fdq")
        assert await run("command -v edit; echo $MADE") == "/workspace/tools/bin/edit\non a server\n"
        for command, shown in TRAJECTORY:
            assert await run(command) == shown, command
        with pytest.raises(NonZeroExitCodeError):
            await run("false")
        with pytest.raises(CommandTimeoutError):
            await run("sleep 1000", timeout=0.2)
        await runtime.run_in_session(BashInterruptAction(timeout=5))
        await run("git add -A && git diff --cached > /workspace/model.patch")
        patch = (await runtime.read_file(ReadFileRequest(path="/workspace/model.patch"))).content
        assert "-    return a - b\n+    return a + b\n" in patch
        await runtime.write_file(WriteFileRequest(path="/workspace/state/x.json", content="{}"))
        assert (await runtime.is_alive()).is_alive
    finally:
        await deployment.stop()
    assert await AsyncSandbox.list(url=url) == []
    os.environ["COVE_API_KEY"] = "wrong-key"
    with pytest.raises(DeploymentStartupError, match="key"):
        await CoveDeploymentConfig(url=url).get_deployment().start()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(sys.argv[1], Path(directory)))
    print("all is well")
