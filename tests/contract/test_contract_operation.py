"""An operation is added in one place: its row, its method in `api`, and its method where it is answered."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.servers import Server, serving

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

# Python imports it first, in every process of the server and in the program that is its client.
PLACE = '''
from abc import abstractmethod

import msgspec

from cove import api
from cove.api.provider import Provider
from cove.runtime.sandbox import Sandbox
from cove.wire import frames, operations, replies, requests
from cove.wire.operation import By, Form, row
from cove.wire.target import Target


class Shout(requests.Request, frozen=True):
    text: str
    times: int = 1

class Count(requests.Request, frozen=True):
    since: str | None = None

class Number(msgspec.Struct, tag="number"):
    number: int
    cursor: str


NUMBERS = replies.events(Number, frames.json_events(Number))
operations.OPERATIONS += (
    row("shout", "POST /voices/{voice}/shout", Target.SANDBOX, "shout", "Shout", Shout, replies.plain(list[str])),
    row("measure", "PUT /measure", Target.SANDBOX, "measure", "Measure", requests.Nothing, replies.COUNT, Form.STREAM),
    row("count", "GET /count", Target.SANDBOX, "count", "Count", Count, NUMBERS, Form.EVENTS),
    row("greet", "GET /v1/greetings/{name}", Target.SERVER, "greet", "Greet", requests.Nothing, replies.plain(str),
        by=By.GATEWAY),
)


class Declared:
    @abstractmethod
    async def shout(self, voice: int, text: str, *, times: int = 1) -> list[str]:
        """In api.AsyncSandbox."""

    @abstractmethod
    async def measure(self, chunks) -> int:
        """In api.AsyncSandbox."""

    @abstractmethod
    def count(self, *, since: str | None = None):
        """In api.AsyncSandbox."""

    async def greet(self, name: str) -> str:
        """In api.Provider."""


class Defined:
    async def shout(self, voice, text, *, times=1):
        return [f"{voice + 1}: {text.upper()} in {self.id}"] * times

    async def measure(self, chunks):
        return sum([len(chunk) async for chunk in chunks])

    async def count(self, *, since=None):
        for number in range(int(since or 0) + 1, 4):
            yield Number(number, str(number))

    async def greet(self, name):
        return f"hello, {name}"

from cove.server.gateway.answers import ServerAnswers  # what is made from the table comes after it

for name in ("shout", "measure", "count"):
    setattr(api.AsyncSandbox, name, vars(Declared)[name])
    setattr(Sandbox, name, vars(Defined)[name])
Sandbox.__abstractmethods__ = frozenset()
Provider.greet = Declared.greet
ServerAnswers.greet = Defined.greet
'''

CLIENT = """
import asyncio, json, runpy, sys
from urllib.request import Request, urlopen

from cove import AsyncSandbox
from cove.api.provider import provider_for

url, key, socket, id, reference = sys.argv[1:]

async def chunks():
    yield b"abc"
    yield b"de"

async def use(sandbox):
    numbers = [event.number async for event in sandbox.count(since="1")]
    return [await sandbox.shout(7, "a", times=2), await sandbox.measure(chunks()), numbers]

async def main():
    found = {}
    async with AsyncSandbox.create(id=id) as sandbox:
        found["embedded"] = await use(sandbox)
    async with AsyncSandbox.connect(id, url=f"unix://{socket}") as sandbox:
        found["runtime"] = await use(sandbox)
    async with AsyncSandbox.connect(id, url=url, api_key=key) as sandbox:
        found["gateway"] = await use(sandbox)
    found["server"] = await provider_for(url, key).greet("you")
    found["reference"] = runpy.run_path(reference)["http_page"]()
    request = Request(f"{url}/v1/openapi.json", headers={"Authorization": f"Bearer {key}"})
    found["openapi"] = list(json.load(urlopen(request))["paths"])
    print(json.dumps(found))

asyncio.run(main())
"""


async def test_an_operation_that_is_added_in_one_place_works_everywhere(
    other_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLACE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'src'}")
    with serving(other_home, "--on-stop", "destroy") as server:
        sandbox = await server.create("one")
        found = await asyncio.to_thread(run_client, server, str(server.directory.socket(await server.record("one"))))
        await sandbox.destroy()
    expected = [["8: A in one"] * 2, 5, [2, 3]]
    assert (found["embedded"], found["runtime"], found["gateway"]) == (expected, expected, expected)
    assert found["server"] == "hello, you"
    for path in ("/v1/sandboxes/{sandbox}/voices/{voice}/shout", "/v1/greetings/{name}"):
        assert path in found["openapi"]
        assert path.removeprefix("/v1/sandboxes/{sandbox}") in found["reference"]


def run_client(server: Server, socket: str) -> dict[str, Any]:  # what the program printed
    arguments = [server.url, server.key, socket, "one", str(ROOT / "scripts/make_reference.py")]
    program = subprocess.run(
        [sys.executable, "-c", CLIENT, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert program.returncode == 0, program.stderr
    found = json.loads(program.stdout)
    assert isinstance(found, dict)
    return found
