"""The process that carries connections may take its time to start."""

import pytest

from cove import AsyncSandbox, NetworkPolicy, NetworkRule
from cove.runtime import egress_process

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("rule", ["files.example", NetworkRule("files.example", methods=["GET"])])
async def test_a_process_that_begins_has_longer_than_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, rule: str | NetworkRule
) -> None:
    monkeypatch.setattr(egress_process, "CONFIRM_SECONDS", 0.001)
    async with AsyncSandbox.create(network=NetworkPolicy(allow=[rule])) as sandbox:
        assert (await sandbox.exec("getent ahostsv4 files.example")).stdout.startswith("198.18.")
