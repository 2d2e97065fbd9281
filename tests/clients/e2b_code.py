"""Drives E2B's code interpreter for Python, unchanged, against a Cove server: synchronous, then asynchronous."""

import asyncio
import time

import pytest
from e2b import SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

FIGURE = """
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
axes.plot([1, 2, 3])
plt.show()
"""


def test_results():
    with Sandbox.create() as sandbox:
        printed = []
        run = sandbox.run_code(
            "import sys\nx = 41\nprint('out')\nprint('err', file=sys.stderr)\nx + 1",
            on_stdout=lambda message: printed.append((message.line, message.timestamp > 0)),
        )
        assert (run.text, run.error) == ("42", None)
        assert "".join(run.logs.stdout) == "out\n"
        assert "".join(run.logs.stderr) == "err\n"
        assert printed == [("out\n", True)]
        assert sandbox.run_code("x").text == "41"
        assert "".join(sandbox.run_code("print('a \\u2028 ü')").logs.stdout) == "a \u2028 ü\n"
        assert sandbox.run_code("'quoted'").text == "quoted"

        failed = sandbox.run_code("1/0")
        assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
        assert "ZeroDivisionError" in failed.error.traceback
        assert failed.execution_count == 5

        assert sandbox.run_code("import os; os.environ['A']", envs={"A": "here"}).text == "here"
        assert sandbox.run_code("os.environ.get('A')").text is None

        shown = sandbox.run_code("from IPython.display import HTML, display; display(HTML('<b>b</b>')); 3").results
        assert (shown[0].html, shown[0].is_main_result) == ("<b>b</b>", False)
        assert (shown[-1].text, shown[-1].is_main_result) == ("3", True)
        frame = sandbox.run_code("import pandas as pd; pd.DataFrame({'a': [1, 2]})").results[0]
        assert "<table" in frame.html
        (picture,) = [each for each in sandbox.run_code(FIGURE).results if each.png]
        assert picture.png.startswith("iVBOR")


def test_contexts():
    with Sandbox.create() as sandbox:
        sandbox.run_code("where = 'default'")
        context = sandbox.create_code_context(cwd="/tmp")
        assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
        assert sandbox.run_code("where", context=context).error.name == "NameError"
        sandbox.run_code("where = 'own'", context=context)
        assert {each.id for each in sandbox.list_code_contexts()} >= {context.id}
        sandbox.restart_code_context(context)
        assert sandbox.run_code("where", context=context).error.name == "NameError"
        assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
        sandbox.remove_code_context(context)
        with pytest.raises(SandboxException):
            sandbox.run_code("1", context=context)
        assert sandbox.run_code("where").text == "default"


def test_languages():
    with Sandbox.create() as sandbox:
        script = sandbox.run_code("const x = 6; console.log('js'); x * 7", language="javascript")
        assert (script.text, "".join(script.logs.stdout)) == ("42", "js\n")
        assert sandbox.run_code("x", language="js").text == "6"
        assert sandbox.run_code("process.env.B", language="js", envs={"B": "b"}).text == "b"
        assert sandbox.run_code("const n: number = 5; n", language="ts").text == "5"
        assert sandbox.run_code("throw new TypeError('no')", language="js").error.name == "TypeError"
        with pytest.raises(SandboxException, match="python, javascript, typescript"):
            sandbox.run_code("ls", language="bash")


def test_ends():
    with Sandbox.create() as sandbox:
        sandbox.run_code("kept = 1")
        with pytest.raises(TimeoutException):
            sandbox.run_code("while True: pass", timeout=1)
        assert sandbox.run_code("kept").text == "1"
        crashed = sandbox.run_code("import os; os._exit(3)")
        assert crashed.error.name == "UnexpectedEndOfExecution"
        assert sandbox.run_code("1 + 1").text == "2"


async def test_asynchronous():
    async with await AsyncSandbox.create() as sandbox:
        results = []
        run = await sandbox.run_code("print('a'); 1", on_result=results.append)
        assert (run.text, [each.text for each in results]) == ("1", ["1"])
        first, second = await asyncio.gather(*(sandbox.create_code_context() for _ in range(2)))
        meeting = "import os, time\nopen('{0}', 'w').close()\nwhile not os.path.exists('{1}'): time.sleep(0.01)\n'met'"
        runs = await asyncio.gather(
            sandbox.run_code(meeting.format("/tmp/1", "/tmp/2"), context=first),
            sandbox.run_code(meeting.format("/tmp/2", "/tmp/1"), context=second),
        )
        assert [each.text for each in runs] == ["met", "met"]
        failed = await sandbox.run_code("raise ValueError('v')")
        assert (failed.error.name, failed.error.value) == ("ValueError", "v")


if __name__ == "__main__":
    began = time.monotonic()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            asyncio.run(test()) if asyncio.iscoroutinefunction(test) else test()
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    assert Sandbox.list().next_items() == []
    print("all is well")
