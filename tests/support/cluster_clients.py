"""Clients of a cluster of machines, one for each node: what they see while machines fail, and what must be true."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from cove import AsyncFleet, AsyncSandbox, ConnectionLost, CoveError, NodeLost, NodeUnavailable
from cove.model import Output, SandboxStatus
from cove.tasks import Tasks
from support.cluster_machines import API_KEY, ClusterMachine, MachineCluster

# A machine that says nothing is known to be lost after 7 seconds. All that asked it are told within the 15 promised.
TYPED_SECONDS = 15.0
BACK_SECONDS = 30.0
# The engine takes its own time to know all machines again; no call waits for that.
ENGINE_SECONDS = 150.0
# Clients that call without a pause would take the processor from the machines that they look at.
PACE_SECONDS = 0.05


@dataclass
class Client:
    """One that works on a sandbox through another node: one long command, a log that it follows, and short commands."""

    sandbox: AsyncSandbox
    node: str
    through: str
    ends: list[CoveError] = field(default_factory=list)
    done: int = 0
    long_end: CoveError | None = None
    output: bytes = b""
    log_end: CoveError | None = None

    @property
    def is_unharmed(self) -> bool:
        """Whether no call of it has failed, nor its long one or its stream ended."""
        return not self.ends and self.long_end is None and self.log_end is None

    @property
    def lines(self) -> list[bytes]:
        """Those that have come whole."""
        return self.output.split(b"\n")[:-1]

    async def work(self) -> None:
        while True:
            try:
                (await self.sandbox.exec("true")).check()
                self.done += 1
            except CoveError as error:
                self.ends.append(error)
            await asyncio.sleep(PACE_SECONDS)

    async def run_long(self) -> None:
        try:
            await self.sandbox.exec("sleep 1000")
        except CoveError as error:
            self.long_end = error

    async def follow(self) -> None:
        process = await self.sandbox.get_process("counting")
        try:
            async for event in process.logs(follow=True):
                if isinstance(event, Output):
                    self.output += event.data
        except CoveError as error:
            self.log_end = error


@asynccontextmanager
async def working(cluster: MachineCluster) -> AsyncIterator[dict[str, Client]]:
    """A client for each node, through the next one."""
    clients: dict[str, Client] = {}
    names = list(cluster.machines)
    async with Tasks() as tasks:
        for node, id in (await one_on_each(cluster)).items():
            through = names[(names.index(node) + 1) % len(names)]
            sandbox = await AsyncSandbox.connect(id, url=cluster[through].url, api_key=API_KEY)
            await sandbox.start_process("i=0; while echo $((i+=1)); do sleep 0.2; done", id="counting")
            (await sandbox.exec("echo kept > kept; sync kept")).check()
            clients[node] = Client(sandbox, node, through)
        for client in clients.values():
            for work in (client.work(), client.run_long(), client.follow()):
                tasks.start(work)
        await until(lambda: all(client.done >= 5 and len(client.lines) >= 5 for client in clients.values()))
        yield clients
    for client in clients.values():
        with suppress(CoveError):
            await client.sandbox.destroy()


async def one_on_each(cluster: MachineCluster) -> dict[str, str]:
    """The id of a sandbox by its node, for each of them; more that had to be made are gone again."""
    found: dict[str, str] = {}
    more: list[AsyncSandbox] = []
    while len(found) < len(cluster.machines):
        made = await AsyncSandbox.create(url=cluster["a"].url, api_key=API_KEY)
        node = (await made.info()).node
        assert node is not None
        if node in found:
            more.append(made)
            continue
        found[node] = made.id
        await made.detach()
    for each in more:
        await each.destroy()
    return found


async def until(is_true: Callable[[], bool], seconds: float = BACK_SECONDS) -> None:
    """Wait for what other machines do; there is nothing else to wait by."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.02)


async def until_in_thread(is_true: Callable[[], bool]) -> None:
    """Wait for what is found by asking programs or reading many small files."""
    async with asyncio.timeout(ENGINE_SECONDS):
        while not await asyncio.to_thread(is_true):
            await asyncio.sleep(0.1)


async def answers(sandbox: AsyncSandbox, *, is_lost: bool) -> None:
    """Wait until the sandbox is found again, with its files. What ran on a machine that was switched off does not."""
    async with asyncio.timeout(BACK_SECONDS):
        while True:
            try:
                status = (await sandbox.info()).status
                break
            except CoveError:
                await asyncio.sleep(0.1)
    assert status == (SandboxStatus.LOST if is_lost else SandboxStatus.RUNNING)
    if is_lost:
        await sandbox.start()
    assert (await sandbox.exec("cat kept")).stdout == "kept\n"


def others(clients: dict[str, Client], lost: str) -> list[Client]:
    """Those whose way does not lead over the lost machine."""
    return [client for client in clients.values() if lost not in (client.node, client.through)]


def lines_are_whole(client: Client) -> bool:
    return client.lines == [b"%d" % number for number in range(1, len(client.lines) + 1)]


async def lose_and_return(cluster: MachineCluster, event: str, *, back: Callable[[], bool] = lambda: True) -> None:
    """Lose machine b: clients are told in time, others see nothing, and what it had is there when it is `back`."""
    async with working(cluster) as clients:
        lost = clients["b"]
        async with asyncio.timeout(TYPED_SECONDS):
            getattr(cluster["b"], event)()
            while lost.long_end is None or lost.log_end is None or not _is_typed(lost.ends):
                await asyncio.sleep(0.02)
        assert isinstance(lost.long_end, ConnectionLost), lost.long_end
        assert isinstance(lost.log_end, NodeLost | NodeUnavailable | ConnectionLost), lost.log_end
        assert all(isinstance(end, ConnectionLost | NodeUnavailable) for end in lost.ends), lost.ends
        (unharmed,) = others(clients, "b")
        before = unharmed.done
        await until(lambda: unharmed.done >= before + 5)
        assert unharmed.is_unharmed
        await _places_elsewhere(cluster, lost.sandbox.id)
        await _return(cluster["b"], event)
        await answers(lost.sandbox, is_lost=event == "kill")
        assert (await lost.sandbox.info()).node == "b"
        assert lines_are_whole(lost)
        assert lines_are_whole(unharmed)
        await until_in_thread(back)
        assert unharmed.is_unharmed


def _is_typed(ends: list[CoveError]) -> bool:
    """Whether calls are told at once that the node is away."""
    return bool(ends) and isinstance(ends[-1], NodeUnavailable)


async def _places_elsewhere(cluster: MachineCluster, lost: str) -> None:
    """Each node finds by itself that another is down: wait until the one that is asked has."""
    async with asyncio.timeout(TYPED_SECONDS):
        while not await _is_known_to_be_away(cluster["a"].url, lost):
            await asyncio.sleep(PACE_SECONDS)
    for _ in range(4):
        async with asyncio.timeout(TYPED_SECONDS):
            made = await AsyncSandbox.create(url=cluster["a"].url, api_key=API_KEY)
        assert (await made.info()).node in ("a", "c")
        await made.destroy()


async def _is_known_to_be_away(url: str, id: str) -> bool:
    try:
        await AsyncSandbox.connect(id, url=url, api_key=API_KEY)
    except (NodeUnavailable, ConnectionLost) as error:
        return isinstance(error, NodeUnavailable)
    return False


async def _return(machine: ClusterMachine, event: str) -> None:
    if event == "kill":
        machine.start()
        await asyncio.to_thread(machine.wait_until_up)
    else:
        machine.heal()


async def restart_servers(cluster: MachineCluster) -> None:
    """Kill and start each server, one after the other: only what is in flight ends, and streams are whole."""
    async with working(cluster) as clients:
        for name, machine in cluster.machines.items():
            client = clients[name]
            machine.kill_server()
            machine.start()
            done, lines = client.done, len(client.lines)
            await until(lambda c=client, d=done, n=lines: c.done >= d + 5 and len(c.lines) >= n + 5)  # type: ignore[misc]  # mypy infers no lambda with defaults
        for client in clients.values():
            assert all(isinstance(end, ConnectionLost) for end in client.ends), client.ends
            assert client.log_end is None
            assert lines_are_whole(client)


async def lose_a_machine_of_a_fleet(cluster: MachineCluster, count: int) -> None:
    """Kill machine b amid tasks that it runs: none is lost, and none has its effects twice.

    Each task appends to a file of its sandbox: one that began twice in one sandbox would find the line before. After a
    third of the tasks those on b do not end, so that b is lost while it has some.
    """
    for id in (await one_on_each(cluster)).values():  # there is room on all of them
        await (await AsyncSandbox.connect(id, url=cluster["a"].url, api_key=API_KEY)).destroy()
    doomed: set[str] = set()
    is_running = asyncio.Event()

    async def task(sandbox: AsyncSandbox, number: int) -> tuple[int, str]:
        wait = ""
        if sandbox.id in doomed:
            wait = "sleep 1000;"
            is_running.set()
        result = await sandbox.exec(f"{wait} echo {number} >> done; cat done; exit {7 if number % 10 == 0 else 0}")
        if result.outcome == "lost":
            raise ConnectionLost("the command was lost")
        return (result.exit_code or 0, result.stdout)

    async def kill() -> None:
        await is_running.wait()
        await asyncio.to_thread(cluster["b"].kill)

    results = []
    async with (
        Tasks() as tasks,
        AsyncFleet(
            12, url=f"{cluster['a'].url},{cluster['c'].url}", api_key=API_KEY, progress=False, lifetime=600
        ) as fleet,
    ):
        async for result in fleet.map(task, range(count), retries=5):
            results.append(result)
            if len(results) == count // 3:
                found = await AsyncSandbox.list(url=cluster["a"].url, api_key=API_KEY)
                doomed.update(info.id for info in found if info.node == "b")
                assert doomed
                tasks.start(kill())
    assert is_running.is_set()
    assert sorted(result.item for result in results) == list(range(count))
    assert [result for result in results if not result.ok] == []
    for result in results:
        assert result.value == (7 if result.item % 10 == 0 else 0, f"{result.item}\n")
    assert any(result.attempts > 1 for result in results)
    assert await AsyncSandbox.list(url=cluster["a"].url, api_key=API_KEY) == []
