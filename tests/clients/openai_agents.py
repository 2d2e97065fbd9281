"""Drives the sandbox client of openai-agents against a server: `URL`, with the key in the environment.

Run by the client's own interpreter, not by the project's.
"""

import asyncio
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from agents import Model, ModelResponse, RunConfig, Runner, Usage, set_tracing_disabled
from agents.extensions.sandbox.cloudflare import CloudflareSandboxClient, CloudflareSandboxClientOptions
from agents.sandbox import (
    LocalSnapshotSpec,
    Manifest,
    SandboxAgent,
    SandboxRunConfig,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.entries import Dir, File
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

MANIFEST = Manifest(
    entries={
        "README.md": File(content=b"# hello\n"),
        "src": Dir(
            children={"main.py": File(content=b"print('hi from main')\n"), "näme #1.txt": File(content=b"odd\n")}
        ),
        **{f"many/{number}.txt": File(content=b"%d" % number) for number in range(10)},
    },
    environment={"value": {"GREETING": "good day"}},
)


class ScriptedModel(Model):
    """Says what it was told to say, one answer after the other, and keeps what it was shown."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.seen = []

    async def get_response(self, system_instructions, input, *_, **__):
        self.seen.append(input)
        return ModelResponse(output=[self.answers.pop(0)], usage=Usage(), response_id=None)

    async def stream_response(self, *_, **__):
        raise NotImplementedError
        yield

    def results(self):
        return [item["output"] for item in self.seen[-1] if item.get("type") == "function_call_output"]


def call(name, **arguments):
    call.number = getattr(call, "number", 0) + 1
    return ResponseFunctionToolCall(
        id=f"fc_{call.number}",
        call_id=f"call_{call.number}",
        type="function_call",
        name=name,
        arguments=json.dumps(arguments),
    )


def say(text):
    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id="msg", type="message", role="assistant", status="completed", content=content)


async def run(session, *command, **options):
    result = await session.exec(*command, **options)
    return result.exit_code, result.stdout, result.stderr


async def check_commands(session):
    assert await run(session, "echo", "hi there", shell=False) == (0, b"hi there\n", b"")
    assert await run(session, "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")
    assert await run(session, "echo $GREETING; pwd") == (0, b"good day\n/workspace\n", b"")
    assert await run(session, "python3 src/main.py") == (0, b"hi from main\n", b"")
    code, out, _ = await run(session, "head -c 300000 /dev/urandom > blob; cat blob; rm blob")
    assert (code, len(out)) == (0, 300000)
    code, _, err = await run(session, "sleep 1000", timeout=1)
    assert (code, err) == (124, b"Command timed out after 1000ms\n")


async def check_files(session):
    assert (await session.read(Path("README.md"))).read() == b"# hello\n"
    assert (await session.read(Path("src/näme #1.txt"))).read() == b"odd\n"
    assert (await session.read(Path("many/7.txt"))).read() == b"7"
    every = bytes(range(256)) * 1000
    for name in ("data.bin", "deep/er/a b%20?&=+[1].bin"):
        await session.write(Path(name), io.BytesIO(every))
        assert (await session.read(Path(name))).read() == every
    assert (await run(session, "stat", "-c", "%s", "deep/er/a b%20?&=+[1].bin", shell=False))[1] == b"256000\n"
    names = [entry.path for entry in await session.ls(Path("src"))]
    assert any("main.py" in str(name) for name in names), names
    await session.mkdir(Path("made/here"), parents=True)
    await session.rm(Path("data.bin"))
    for name in ("data.bin", "never/was"):
        try:
            await session.read(Path(name))
        except WorkspaceReadNotFoundError:
            continue
        raise AssertionError(f"{name} is not there")


async def check_patches(session):
    await session.apply_patch({"type": "create_file", "path": "patched.txt", "diff": "+one\n+two\n"})
    await session.apply_patch({"type": "update_file", "path": "patched.txt", "diff": "@@\n one\n-two\n+three\n"})
    assert (await session.read(Path("patched.txt"))).read().split() == [b"one", b"three"]
    await session.apply_patch({"type": "delete_file", "path": "patched.txt"})
    assert (await run(session, "test -e patched.txt"))[0] == 1


async def check_terminals(session):
    began = time.monotonic()
    update = await session.pty_exec_start("echo typed; tty; exit 3", yield_time_s=100)
    assert time.monotonic() - began < 60, "a command in a terminal is answered when it ends"
    assert (update.exit_code, update.process_id) == (3, None)
    assert update.output.startswith(b"typed\r\n/dev/pts/"), update.output
    update = await session.pty_exec_start("read line; echo got $line; sleep 60", tty=True, yield_time_s=0.25)
    assert update.process_id is not None
    update = await session.pty_write_stdin(session_id=update.process_id, chars="words\n", yield_time_s=1)
    assert b"got words\r\n" in update.output, update.output
    update = await session.pty_write_stdin(session_id=update.process_id, chars="\x03", yield_time_s=5)
    assert update.exit_code == 130, update
    await session.pty_terminate_all()


async def check_archives(client, session):
    await run(session, "mkdir -p venv/bin tree; ln -s /workspace/README.md tree/link; ln README.md hard; mkfifo pipe")
    archive = await session.persist_workspace()
    await run(session, "rm -rf README.md hard tree")
    await session.hydrate_workspace(archive)
    assert (await run(session, "cat tree/link hard"))[1] == b"# hello\n# hello\n"


async def resume(client, state):
    resumed = await client.resume(state)
    await resumed.start()
    assert (await resumed.read(Path("kept.txt"))).read() == b"kept"
    assert (await run(resumed, "test -e drifted"))[0] == 1
    assert (await resumed.read(Path("README.md"))).read() == b"# hello\n"
    return resumed


async def check_resume(client, options, directory):
    """Stop with a snapshot; resume on the living sandbox, on a changed one, and on one that is gone."""
    os.environ["CLOUDFLARE_SANDBOX_API_KEY"] = options.api_key
    session = await client.create(manifest=MANIFEST, options=options, snapshot=LocalSnapshotSpec(base_path=directory))
    await session.start()
    await session.write(Path("kept.txt"), io.BytesIO(b"kept"))
    await session.stop()
    state = client.deserialize_session_state(json.loads(session.state.model_dump_json()))
    resumed = await resume(client, state)
    await run(resumed, "rm kept.txt; echo x > drifted")
    resumed = await resume(client, state)
    await client.delete(resumed)
    resumed = await resume(client, state)
    await client.delete(resumed)
    assert not await resumed.running()


async def check_resume_without_a_snapshot(client, options):
    session = await client.create(manifest=MANIFEST, options=options)
    await session.start()
    state = client.deserialize_session_state(json.loads(session.state.model_dump_json()))
    await client.delete(session)
    resumed = await client.resume(state)
    await resumed.start()
    assert (await resumed.read(Path("README.md"))).read() == b"# hello\n"
    await client.delete(resumed)


async def check_agent(client, options):
    """The runner with the tools it gives to a model: a terminal for commands, patches, and what they answer."""
    model = ScriptedModel(
        call("exec_command", cmd="cat README.md; exit 4"),
        call("exec_command", cmd="python3 -c 'print(6*7)'"),
        call("exec_command", cmd="nohup sleep 60 >/dev/null 2>&1 & echo started"),
        call("exec_command", cmd="pgrep -c sleep"),
        say("done"),
    )
    agent = SandboxAgent(name="Scripted", model=model, instructions="", default_manifest=MANIFEST)
    began = time.monotonic()
    sandbox = SandboxRunConfig(client=client, options=options)
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=sandbox))
    assert result.final_output == "done"
    assert time.monotonic() - began < 20, "commands are answered when they end, not when their time is over"
    first, second, third, fourth = model.results()
    for text, told in (
        ("Process exited with code 4", first),
        ("Output:\n# hello", first),
        ("Process exited with code 0", second),
        ("Output:\n42", second),
        ("Output:\nstarted", third),
        ("Output:\n1", fourth),
    ):
        assert text in told, told


async def main(url, is_long):
    set_tracing_disabled(True)
    client = CloudflareSandboxClient()
    options = CloudflareSandboxClientOptions(worker_url=url, api_key=os.environ["BRIDGE_KEY"])
    session = await client.create(manifest=MANIFEST, options=options)
    await session.start()
    assert await session.running()
    await check_commands(session)
    await check_files(session)
    await check_patches(session)
    await check_terminals(session)
    await check_archives(client, session)
    await client.delete(session)
    await check_agent(client, options)
    if is_long:
        with tempfile.TemporaryDirectory() as directory:
            await check_resume(client, options, Path(directory))
        await check_resume_without_a_snapshot(client, options)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], "--long" in sys.argv))
    print("all is well")
