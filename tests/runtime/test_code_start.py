"""What the first Python context of a sandbox imports, what later ones find imported, and figures of both."""

import pytest
from support.executors import fork_servers, needs_python
from test_code_results import pictures

from cove import AsyncSandbox
from cove.runtime.code_contexts import CodeContexts
from cove.runtime.fork_server import ForkServers

pytestmark = [pytest.mark.anyio, needs_python]

FOUND = "import sys; sorted({'numpy', 'pandas', 'matplotlib', 'matplotlib.pyplot'} & set(sys.modules))"
ALL = "['matplotlib', 'matplotlib.pyplot', 'numpy', 'pandas']"


def servers_of(sandbox: AsyncSandbox) -> ForkServers:
    inner: CodeContexts = sandbox._surfaces.contexts  # type: ignore[attr-defined]
    return inner._servers


async def replaced(sandbox: AsyncSandbox) -> None:
    """Until the background work of the sandbox, such as starting another Python, is done."""
    background = sandbox._surfaces.spawner.background  # type: ignore[attr-defined]
    while background._tasks:
        await next(iter(background._tasks))


async def test_a_context_has_only_what_it_imports_itself_until_packages_are_in_use() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        assert (await context.run(FOUND)).text == "[]"
        assert (await context.run("import pandas; pandas.Series([1, 2]).sum()")).text == "np.int64(3)"
        (first,) = await fork_servers(sandbox)
        assert (await (await sandbox.create_code_context()).run(FOUND)).text == "[]"
        await replaced(sandbox)
        later = await sandbox.create_code_context()
        assert (await later.run(FOUND)).text == ALL
        assert (await context.run("pandas.Series([1]).sum()")).text == "np.int64(1)"
        assert first in await fork_servers(sandbox)


async def test_the_python_that_was_replaced_ends_with_its_last_context() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.run("import numpy")
        (first,) = await fork_servers(sandbox)
        for _ in range(2):
            assert (await sandbox.run_code("1 + 1")).text == "2"
            await replaced(sandbox)
        assert (await sandbox.run_code(FOUND)).text == ALL
        assert len(await fork_servers(sandbox)) == 2
        await context.delete()
        await replaced(sandbox)
        (second,) = await fork_servers(sandbox)
        assert second != first
        assert (await sandbox.run_code("2 + 2")).text == "4"


async def test_a_python_that_is_killed_after_it_was_replaced_takes_only_its_own_contexts() -> None:
    async with AsyncSandbox.create() as sandbox:
        old = await sandbox.create_code_context()
        await old.run("import numpy")
        (first,) = await fork_servers(sandbox)
        await sandbox.create_code_context()
        await replaced(sandbox)
        new = await sandbox.create_code_context()
        await sandbox.exec(f"kill -9 {first}")
        assert (await new.run("1")).text == "1"
        assert (await sandbox.run_code("2")).text == "2"
        assert servers_of(sandbox)._replaced == [] or not servers_of(sandbox)._replaced[0].is_alive


FIGURES = [
    "import matplotlib.pyplot as plt; plt.plot([1, 2]);",
    "from matplotlib import pyplot; pyplot.plot([1]); pyplot.show()",
    "import pandas; pandas.Series([1, 2]).plot();",
    "from matplotlib.figure import Figure; f = Figure(); f.add_subplot(); f",
    "import matplotlib; matplotlib.rcdefaults(); import matplotlib.pyplot as plt; plt.plot([1]);",
]


@pytest.mark.parametrize("code", FIGURES)
async def test_figures_are_pictures_whoever_imports_matplotlib_first(code: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        assert pictures(await sandbox.run_code(code)) == [(640, 480)]


async def test_a_backend_that_the_environment_names_is_left_alone_and_children_have_their_own() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context(env={"MPLBACKEND": "svg"})
        assert (await context.run("import matplotlib; matplotlib.get_backend()")).text == "'svg'"
        child = "import matplotlib.pyplot as p; p.plot([1]); p.savefig('/tmp/a.png'); print(p.get_backend())"
        result = await sandbox.run_code(f"import matplotlib.pyplot\n!python3 -c {child!r}")
        assert (result.stdout.lower(), result.stderr) == ("agg\n", "")


async def test_completion_works_when_somebody_asks_for_it() -> None:
    async with AsyncSandbox.create() as sandbox:
        code = "name_of_mine = 1; sorted(set(get_ipython().Completer.global_matches('name_of_m')))"
        completed = await sandbox.run_code(code)
        assert (completed.error, completed.text) == (None, "['name_of_mine']")
