"""Presets are built for real, from this machine's package sources, and have what they promise."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.executors import needs_python

from cove import AsyncImage, AsyncSandbox
from cove.runtime.interpreters import find_node

SOURCES = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.sources")]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    needs_python,
    pytest.mark.skipif(
        shutil.which("mmdebstrap") is None or not any(path.exists() for path in SOURCES),
        reason="needs mmdebstrap and apt's sources",
    ),
]

HOST_NODE = find_node()
TOOLS = ("bash", "curl", "file", "gcc", "git", "jq", "less", "make", "ps", "rg", "ssh", "tree", "unzip", "wget", "zip")
COMPILED = r"""
cd /tmp && printf '#include <Python.h>\nint main(void) { Py_Initialize(); return 0; }\n' > made.c
gcc $(python3-config --includes) made.c -o made $(python3-config --embed --ldflags) && ./made && echo compiled
"""
COMMIT = "git -c user.email=a@b -c user.name=c commit -q --allow-empty -m one"
SAVE = "import matplotlib.pyplot as p; p.plot([1]); p.savefig('/tmp/a.png')"
PLOT = """
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy, sklearn, sqlalchemy, bs4, lxml, openpyxl, requests
table = pd.DataFrame({"a": np.arange(5)})
plt.plot(table.a)
plt.show()
table
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def base(cove_home: Path) -> AsyncIterator[str]:
    image = await AsyncImage.bootstrap(name="preset-base")
    yield image.name
    await image.delete()


async def run(sandbox: AsyncSandbox, command: str) -> str:
    done = await sandbox.exec(command, timeout=120)
    assert done.exit_code == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture
async def sandbox(request: pytest.FixtureRequest, base: str) -> AsyncIterator[AsyncSandbox]:
    image = await AsyncImage.build(preset=request.param, base=base, name="preset-made")
    async with AsyncSandbox.create(image=image.name) as sandbox:
        assert await run(sandbox, f"for each in {' '.join(TOOLS)}; do type $each > /dev/null || echo $each; done") == ""
        yield sandbox
    await image.delete()
    await AsyncImage.prune()


@pytest.mark.parametrize("sandbox", ["python"], indirect=True)
async def test_python_has_pip_headers_and_tools_and_runs_code(sandbox: AsyncSandbox) -> None:
    assert (await run(sandbox, "python --version")).startswith("Python 3.")
    await run(sandbox, "pip install --quiet --no-index pip")  # allowed, though Debian says that it manages this Python
    await run(sandbox, "python -m venv /tmp/v && /tmp/v/bin/python -c 'import pip'")
    assert await run(sandbox, COMPILED) == "compiled\n"
    assert await run(sandbox, f"git init -q /tmp/r && cd /tmp/r && {COMMIT} && git log --format=%s") == "one\n"
    context = await sandbox.create_code_context("python")
    assert (await context.run("import os; os.path.realpath('/proc/self/exe')")).text == "'/usr/bin/python3.11'"
    assert [info.interpreter for info in await sandbox.list_code_contexts()] == ["image"]


@pytest.mark.parametrize("sandbox", ["node"], indirect=True)
async def test_node_has_npm_and_runs_javascript(sandbox: AsyncSandbox) -> None:
    version = await run(sandbox, "node --version; npm --version > /dev/null")
    await run(sandbox, "mkdir /tmp/made && cd /tmp/made && npm init -y")
    assert await run(sandbox, "node -p 'require(\"/tmp/made/package.json\").name'") == "made\n"
    is_new = int(version.removeprefix("v").partition(".")[0]) >= 20
    if not is_new and HOST_NODE is None:
        pytest.skip("this Debian has an old Node.js, and this machine none")
    context = await sandbox.create_code_context("javascript")
    assert (await context.run("[1, 2].map(each => each * 21).join()")).text == "'21,42'"
    assert [info.interpreter for info in await sandbox.list_code_contexts()] == ["image" if is_new else "cove"]


@pytest.mark.parametrize("sandbox", ["data"], indirect=True)
async def test_data_has_what_is_needed_to_plot(sandbox: AsyncSandbox) -> None:
    assert await run(sandbox, "sqlite3 :memory: 'select 6 * 7'") == "42\n"
    assert (await run(sandbox, f'python -c "{SAVE}"; file -b /tmp/a.png')).startswith("PNG image")
    context = await sandbox.create_code_context("python")
    made = await context.run(PLOT)
    assert made.error is None, made.error
    kinds = {kind for result in made.results for kind in result.data}
    assert {"image/png", "text/html"} <= kinds
    assert [info.interpreter for info in await sandbox.list_code_contexts()] == ["image"]
