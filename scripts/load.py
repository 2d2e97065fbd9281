"""Many clients on one server for a while: every surface, clients that vanish, runtimes that are killed.

Every answer is checked against the token of the client that asked and of the sandbox that it asked. Prints what was
done as JSON; ends with 1 if a byte was wrong, an error came that had no cause, or anything was left or grew.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from load_server import Footprint, LoadServer, serve

from cove import AsyncSandbox, CoveError, InterpreterNotReady, Output, SandboxUnavailable
from cove.api import Session

RESTART_SECONDS = 60.0
_GROWTH = 1.3
_SLACK_BYTES = 16 << 20


class Wrong(Exception):
    """An answer is not what it must be."""


def check(found: object, expected: object) -> None:
    """Raise Wrong unless they are equal."""
    if found != expected:
        raise Wrong(f"{str(found)[:200]!r} instead of {str(expected)[:200]!r}")


@dataclass
class Place:
    """A sandbox that several clients use; `upheavals` counts the deaths of its runtime and the restarts."""

    sandbox: AsyncSandbox
    token: str
    upheavals: int = 0
    is_dead: bool = False
    has_python: bool = True
    healing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def furnish(self) -> None:
        """What the clients look for."""
        await self.sandbox.files.write("token", self.token)

    async def heal(self) -> None:
        """Start it again after its runtime was killed, unless another client has."""
        async with self.healing, asyncio.timeout(RESTART_SECONDS):
            while self.is_dead:
                try:
                    await self.sandbox.restart()
                except SandboxUnavailable:  # what the dead one left is just being removed
                    await asyncio.sleep(0.05)
                else:
                    self.is_dead = False
                    self.upheavals += 1


class Client:
    """Does one thing after the other in its place, and checks what comes back."""

    def __init__(self, number: int, place: Place, server: LoadServer, chance: random.Random) -> None:
        self.token = f"client-{number}-{chance.getrandbits(64):x}"
        self._place = place
        self._server = server
        self._chance = chance
        self._session: Session | None = None
        self._session_since = 0
        self._steps = 0
        self.tally: Counter[str] = Counter()
        self._actions: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (10, self.exec),
            (10, self.session_exec),
            (4, self.large_output),
            (5, self.process_logs),
            (3, self.leave_logs),
            (5, self.files),
            (3, self.terminal),
            (2, self.code),
            (4, self.cancel),
            (2, self.vanish),
            (1, self.own_sandbox),
        ]

    @property
    def sandbox(self) -> AsyncSandbox:
        """Where it works."""
        return self._place.sandbox

    async def run(self, until: float) -> None:
        """Until the time is up. An error that no killed runtime explains is raised."""
        weights, actions = zip(*self._actions, strict=True)
        while time.monotonic() < until:
            action = self._chance.choices(actions, weights)[0]
            upheavals = self._place.upheavals
            try:
                async with asyncio.timeout(RESTART_SECONDS):
                    await action()
                self.tally[action.__name__] += 1
            except CoveError as error:
                await self._explain(action.__name__, error, upheavals)

    async def _explain(self, name: str, error: CoveError, upheavals: int) -> None:
        await self._place.heal()
        if self._place.upheavals == upheavals:
            raise Wrong(f"{name}: {type(error).__name__}: {error}") from error
        self.tally["interrupted"] += 1
        self._session = None

    async def exec(self) -> None:
        """One command."""
        nonce = self._chance.getrandbits(64)
        result = await self.sandbox.exec(f"cat token; echo; echo {self.token} {nonce}; exit {nonce % 7}")
        check((result.stdout, result.exit_code), (f"{self._place.token}\n{self.token} {nonce}\n", nonce % 7))

    async def session_exec(self) -> None:
        """Its own shell counts."""
        if self._session is None or self._session_since != self._place.upheavals:
            self._session_since, self._steps = self._place.upheavals, 0
            self._session = await self.sandbox.create_session(env={"TOKEN": self.token})
        self._steps += 1
        result = await self._session.exec("echo $((++steps)) $TOKEN")
        check(result.stdout, f"{self._steps} {self.token}\n")

    async def large_output(self) -> None:
        """Output that is not text."""
        size = self._chance.randrange(2_000_000)
        result = await self.sandbox.exec(f"head -c {size} /dev/urandom | tee /dev/fd/3 3>&1 >&2 | sha256sum")
        check(hashlib.sha256(result.stderr_bytes).hexdigest(), result.stdout.split()[0])
        check(len(result.stderr_bytes), size)

    async def process_logs(self) -> None:
        """A process and all it prints, from two readers."""
        count = self._chance.randrange(1, 3000)
        process = await self.sandbox.start_process(f"for i in $(seq {count}); do echo {self.token} $i; done", keep=True)
        expected = "".join(f"{self.token} {number}\n" for number in range(1, count + 1)).encode()
        for reader in (process, await self.sandbox.get_process(process.id)):
            printed = b"".join([event.data async for event in reader.logs() if isinstance(event, Output)])
            check(hashlib.sha256(printed).hexdigest(), hashlib.sha256(expected).hexdigest())
        check((await process.wait()).exit_code, 0)

    async def leave_logs(self) -> None:
        """A reader that leaves in the middle."""
        process = await self.sandbox.start_process(f"yes {self.token} | head -c 5000000; sleep 1000")
        async with aclosing(process.logs()) as events:
            event = await anext(events)
            check(isinstance(event, Output) and event.data.startswith(self.token.encode()), True)
        await process.kill("KILL")

    async def files(self) -> None:
        """A file there and back."""
        data, name = self._chance.randbytes(self._chance.randrange(500_000)), f"{self.token}/file"
        await self.sandbox.files.write(name, data)
        check(await self.sandbox.files.read(name), data)
        check((await self.sandbox.files.read("token")).decode(), self._place.token)

    async def terminal(self) -> None:
        """Somebody types and watches."""
        terminal = await self.sandbox.terminal(id=self.token, shell=["cat"])
        nonce = f"{self.token}-{self._chance.getrandbits(64)}"
        async with terminal.connect() as connection:
            await connection.write(f"{nonce}\n")
            seen = b""
            async for event in connection:
                seen += event.data if isinstance(event, Output) else b""
                if seen.count(nonce.encode()) == 2:
                    break
        check([line for line in seen.split() if not line.startswith(self.token.encode())], [])

    async def code(self) -> None:
        """Code in a clean executor."""
        if self._place.has_python:
            try:
                execution = await self.sandbox.run_code(f"open('/workspace/token').read(), {self.token!r}")
            except InterpreterNotReady:
                self._place.has_python = False
                return
            check(execution.text, str((self._place.token, self.token)))

    async def cancel(self) -> None:
        """A caller that gives up."""
        call = asyncio.ensure_future(self.sandbox.exec(f"exec -a {self.token} sleep 1000"))
        try:
            await asyncio.wait([call], timeout=self._chance.random() * 0.1)
        finally:
            call.cancel()
        with suppress(asyncio.CancelledError):
            await call

    async def vanish(self) -> None:
        """A connection that ends in the middle of a request."""
        _, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        head = f"POST /v1/sandboxes/{self.sandbox.id}/exec HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: Bearer {self._server.key}\r\nContent-Length: 100000\r\n\r\n"
        writer.write(
            head.encode()[: self._chance.randrange(len(head))] if self._chance.random() < 0.5 else head.encode()
        )
        writer.write(self._chance.randbytes(self._chance.randrange(1000)) if self._chance.random() < 0.3 else b"")
        await asyncio.sleep(self._chance.random() * 0.05)
        writer.transport.abort()

    async def own_sandbox(self) -> None:
        """One of its own, from creation to destruction."""
        async with AsyncSandbox.create(**self._server.address) as sandbox:
            result = await sandbox.exec(f"ls -A; echo {self.token}")
            check(result.stdout, f"{self.token}\n")


@dataclass
class Load:
    """The whole of it."""

    server: LoadServer
    clients: int
    sandboxes: int
    seconds: float
    chance: random.Random
    kills: int = 0

    async def run(self) -> dict[str, object]:
        """Use the server; what was done."""
        before = self.server.footprint()
        async with self._places() as places:
            until = time.monotonic() + self.seconds
            clients = [
                Client(number, places[number % len(places)], self.server, random.Random(self.chance.random()))
                for number in range(self.clients)
            ]
            samples = await self._use(clients, places, until)
        await self._settle(before)
        tally = sum((client.tally for client in clients), Counter())
        done = sum(count for name, count in tally.items() if name != "interrupted")
        return {
            "clients": self.clients,
            "sandboxes": self.sandboxes,
            "seconds": self.seconds,
            "runtimes killed": self.kills,
            "operations": done,
            "operations per second": round(done / self.seconds, 1),
            "by kind": dict(sorted(tally.items())),
            **self._growth(samples),
        }

    async def _use(self, clients: list[Client], places: list[Place], until: float) -> list[Footprint]:
        samples: list[Footprint] = []
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(client.run(until))
            tasks.create_task(self._kill(places, until))
            tasks.create_task(self._sample(samples, until))
        return samples

    @asynccontextmanager
    async def _places(self) -> AsyncIterator[list[Place]]:
        made = await asyncio.gather(*(AsyncSandbox.create(**self.server.address) for _ in range(self.sandboxes)))
        places = [Place(sandbox, f"sandbox-{sandbox.id}") for sandbox in made]
        try:
            await asyncio.gather(*(place.furnish() for place in places))
            yield places
        finally:
            await asyncio.gather(*(place.sandbox.destroy() for place in places))

    async def _kill(self, places: list[Place], until: float) -> None:
        """A runtime dies every few seconds, and not in the last ones."""
        while (pause := self.chance.uniform(1, 4)) < until - time.monotonic():
            await asyncio.sleep(pause)
            place = self.chance.choice(places)
            async with place.healing:
                pid = await asyncio.to_thread(self.server.runtime_of, place.sandbox.id)
                if pid is not None:
                    place.upheavals += 1
                    place.is_dead = True
                    self.kills += 1
                    os.kill(pid, signal.SIGKILL)

    async def _sample(self, samples: list[Footprint], until: float) -> None:
        while time.monotonic() < until:
            samples.append(await asyncio.to_thread(self.server.footprint))
            await asyncio.sleep(min(1.0, self.seconds / 10))

    def _growth(self, samples: list[Footprint]) -> dict[str, object]:
        """Memory after a third of the time and at the end, for all workers together."""
        early, late = samples[len(samples) // 3].memory, samples[-1].memory
        if late > early * _GROWTH + _SLACK_BYTES:
            raise Wrong(f"the server's memory grew from {early >> 20} MB to {late >> 20} MB")
        return {
            "memory of the server at first, after a third, at last, MB": [
                samples[0].memory >> 20,
                early >> 20,
                late >> 20,
            ]
        }

    async def _settle(self, before: Footprint) -> None:
        """What ends with its client ends a moment later; then nothing may be left."""
        for _ in range(100):
            left = await asyncio.to_thread(self.server.left_behind, before)
            if not left:
                return
            await asyncio.sleep(0.1)
        raise Wrong(f"left behind: {left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--sandboxes", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="cove-load-", dir="/tmp"))
    home.chmod(0o711)
    try:
        with serve(home) as server:
            chance = random.Random(options.seed)
            load = Load(server, options.clients, options.sandboxes, options.seconds, chance)
            print(json.dumps({"seed": options.seed, **uvloop.run(load.run())}, indent=2))
    except* Wrong as failures:
        for failure in failures.exceptions:
            print(f"seed {options.seed}: {failure}", file=sys.stderr)
        sys.exit(1)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
