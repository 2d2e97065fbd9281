"""Network policies, whatever way the sandbox is reached."""

import asyncio
from contextlib import aclosing

import pytest
from support.serving import MakeSandbox

from cove import Network, NetworkPolicy, NetworkRule, ValidationFailed

pytestmark = pytest.mark.anyio

LOOK_UP = "getent ahostsv4 other.example"


async def test_a_policy_is_part_of_what_a_sandbox_is(make_sandbox: MakeSandbox) -> None:
    policy = NetworkPolicy(allow=["files.example", NetworkRule("api.example", methods=["GET"])], deny=["x.example"])
    async with make_sandbox(network=policy) as sandbox:
        assert (await sandbox.info()).spec.network == policy


async def test_what_was_refused_is_in_the_result_and_in_the_log(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox(network=NetworkPolicy(allow=["files.example"])) as sandbox:
        assert (await sandbox.exec("getent ahostsv4 files.example")).stdout.startswith("198.18.")
        session = await sandbox.create_session()
        for result in (await sandbox.exec(LOOK_UP), await session.exec(LOOK_UP)):
            (denial,) = result.denied
            assert (denial.host, denial.rule) == ("other.example", "other.example")
            assert result.exit_code != 0
        events = [event async for event in sandbox.network_log()]
        assert [(event.kind, event.host, event.allowed) for event in events] == [("name", "other.example", False)] * 2
        assert [event async for event in sandbox.network_log(since=events[0].cursor)] == events[1:]


async def test_the_log_can_be_followed(make_sandbox: MakeSandbox) -> None:
    async with (
        make_sandbox(network=NetworkPolicy(allow=["files.example"])) as sandbox,
        aclosing(sandbox.network_log(follow=True)) as events,
        asyncio.timeout(60),
    ):
        first = asyncio.ensure_future(anext(events))
        await sandbox.exec(LOOK_UP)
        assert (await first).host == "other.example"


async def test_a_policy_can_be_changed(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        assert (await sandbox.exec(LOOK_UP)).denied == ()
        await sandbox.set_network(NetworkPolicy(allow=["other.example"]))
        assert (await sandbox.exec(LOOK_UP)).stdout.startswith("198.18.")
        assert (await sandbox.info()).spec.network == NetworkPolicy(allow=["other.example"])
        await sandbox.set_network("none")
        assert (await sandbox.exec(LOOK_UP)).exit_code != 0
        assert (await sandbox.info()).spec.network is Network.NONE


async def test_a_policy_that_makes_no_sense_is_refused(make_sandbox: MakeSandbox) -> None:
    async with make_sandbox() as sandbox:
        with pytest.raises(ValidationFailed, match="not a port"):
            await sandbox.set_network(NetworkPolicy(allow=["a.example:0"]))
        with pytest.raises(ValidationFailed, match="or never"):
            await sandbox.set_network(Network.HOST)
