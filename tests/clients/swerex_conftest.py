"""Fixtures that SWE-ReX's own tests of a runtime ask for, on a sandbox. Copied beside them by test_swerex.py."""

import pytest
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest

from cove.integrations.swerex import CoveDeployment


class _Action(BashAction):
    timeout: float | None = 20


class _Command(Command):
    timeout: float | None = 20


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def deployment(tmp_path):
    """A sandbox that has the test's own directory under the same path, because they look at it from both sides."""
    for each in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        each.chmod(0o777)
    deployment = CoveDeployment(mounts={str(tmp_path): str(tmp_path)})
    await deployment.start()
    link = "mkdir -p ~/.local/bin; ln -s $(command -v python3) ~/.local/bin/python"
    await deployment.runtime.execute(Command(command=link, shell=True, check=True))
    yield deployment
    await deployment.stop()


@pytest.fixture
def remote_runtime(deployment):
    return deployment.runtime


@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest(startup_timeout=20))
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())
