"""`cove demo`: each surface that exists, shown in a real sandbox. The lines on the screen are the lines that run."""

import asyncio
import inspect
import textwrap
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cove import AsyncSandbox, Sandbox
from cove.errors import InterpreterNotReady

if TYPE_CHECKING:
    from rich.console import Console


async def one_command(sandbox: AsyncSandbox) -> None:
    """One command, one result, in a Linux that shows nothing of the host."""
    result = await sandbox.exec("whoami; pwd; ls -x /; env | sort")
    print(result.stdout, end="")


async def truthful_ends(sandbox: AsyncSandbox) -> None:
    """Tell exactly how a command ended."""
    for command in ("exit 3", "kill -SEGV $$", "nonsense", "echo out; echo err >&2"):
        result = await sandbox.exec(command)
        print(command, "->", result.outcome, result.exit_code)
        print([result.stdout, result.stderr])


async def timeout(sandbox: AsyncSandbox) -> None:
    """A timeout ends everything the command started, also what hid in a session of its own."""
    result = await sandbox.exec("setsid sleep 99 & echo partial; sleep 99", timeout=0.3)
    print(result.outcome, result.exit_code, repr(result.stdout))
    left = await sandbox.exec("cat /proc/[0-9]*/comm | grep -c sleep")
    print("left running:", left.stdout, end="")


async def no_network(sandbox: AsyncSandbox) -> None:
    """No network unless it is asked for."""
    result = await sandbox.exec("cut -sd: -f1 /proc/net/dev; echo > /dev/tcp/1.1.1.1/53")
    print(result.stdout + result.stderr, end="")


async def many_at_once(sandbox: AsyncSandbox) -> None:
    """Commands run side by side."""
    commands = [f"sleep 0.2; echo {number**2}" for number in range(20)]
    results = await asyncio.gather(*map(sandbox.exec, commands))
    print(*[result.stdout.strip() for result in results])


async def process(sandbox: AsyncSandbox) -> None:
    """A process lives on its own: wait for its port, follow its log, end its whole tree."""
    server = await sandbox.start_process("python3 -u -m http.server 3000")
    await server.wait_for_port(3000, timeout=20)
    print("pid", server.pid, "answers on the sandbox's own port 3000")
    await server.kill()
    async for event in server.logs():
        print(event)


async def interactive(sandbox: AsyncSandbox) -> None:
    """A process can be written to."""
    calculator = await sandbox.start_process("python3 -iqu", stdin=True)
    await calculator.write_stdin("6 * 7\n")
    print(await calculator.wait_for_log("42", timeout=20))
    await calculator.close_stdin()
    end = await calculator.wait(timeout=20)
    print(end.outcome, end.exit_code)


async def session(sandbox: AsyncSandbox) -> None:
    """A session is a bash that keeps its state, also through a timeout."""
    shell = await sandbox.create_session()
    await shell.exec("cd /tmp; greeting=hello; greet() { echo $greeting, $1; }")
    print((await shell.exec("greet world; pwd")).stdout, end="")
    print((await shell.exec("while :; do :; done", timeout=0.2)).outcome)
    print((await shell.exec("greet again")).stdout, end="")


async def terminal(sandbox: AsyncSandbox) -> None:
    """A terminal shows the same to all who watch it, and keeps what it showed for those who come later."""
    screen = await sandbox.terminal(cols=100, rows=30)
    async with screen.connect() as viewer:
        await viewer.write("tty; stty size; exit 3\n")
        print(*[event async for event in viewer], sep="\n")
    async with screen.connect() as late:
        print(*[event async for event in late], sep="\n")


async def code(sandbox: AsyncSandbox) -> None:
    """A code context keeps what it has computed; the last expression is the result, a figure is a picture."""
    context = await sandbox.create_code_context()
    await context.run("import numpy as np, matplotlib.pyplot as plt; x = np.linspace(0, 6.28, 100)")
    print((await context.run("np.sin(x).max().round(3)")).text)
    figure = (await context.run("plt.plot(x, np.sin(x));")).results[0]
    print(figure.text, "as a PNG of", len(figure.png or b""), "bytes")
    print((await context.run("1 / 0")).error)
    print((await context.run("while True: x += 1", timeout=0.2)).outcome, (await context.run("x.shape")).text)


def blocking() -> None:
    """The same without async: `from cove import Sandbox`."""
    with Sandbox.create(env={"GREETING": "hello"}) as sandbox:
        result = sandbox.exec("echo $GREETING from $HOSTNAME").check()
        print(result.stdout, end="")


SCENES: tuple[Callable[[AsyncSandbox], Awaitable[None]], ...] = (
    one_command,
    truthful_ends,
    timeout,
    no_network,
    many_at_once,
    process,
    interactive,
    session,
    terminal,
    code,
)


def demo() -> None:
    """Show each surface in a real sandbox."""
    from rich.console import Console

    console = Console(highlight=False)
    asyncio.run(_play(console))
    _announce(console, blocking)
    blocking()
    console.print("\nEvery sandbox is gone. To read on: `cove --help`, `cove doctor`.", style="bold")


async def _play(console: "Console") -> None:
    began = time.perf_counter()
    async with AsyncSandbox.create() as sandbox:
        info = await sandbox.info()
        console.print(
            f"Sandbox {info.id} was ready after {1000 * (time.perf_counter() - began):.0f} ms. "
            f"Isolation: {info.isolation}. Trees of processes are ended by {info.tree_kill}.",
            style="bold",
        )
        for scene in SCENES:
            _announce(console, scene)
            started = time.perf_counter()
            try:
                await scene(sandbox)
            except InterpreterNotReady as error:
                console.print(error.message, style="yellow")
            console.print(f"{1000 * (time.perf_counter() - started):.0f} ms", style="dim")


def _announce(console: "Console", scene: Callable[..., object]) -> None:
    from rich.syntax import Syntax

    console.print(f"\n{inspect.getdoc(scene)}", style="bold cyan", soft_wrap=True)
    if console.is_terminal:
        console.print(Syntax(_body(scene), "python", background_color="default", word_wrap=True))
    else:  # lines of a file stay whole
        print(_body(scene))


def _body(scene: Callable[..., object]) -> str:
    """The lines of a scene, without its first line and its docstring."""
    return textwrap.dedent(inspect.getsource(scene).partition('"""\n')[2]).rstrip()
