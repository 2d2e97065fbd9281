"""Drives E2B's code interpreter for Python, unchanged, against a Cove server: synchronous, then asynchronous."""

import asyncio
import time

import pytest
from e2b import SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox
from e2b_code_interpreter.charts import (
    BarChart,
    BoxAndWhiskerChart,
    LineChart,
    PieChart,
    ScaleType,
    ScatterChart,
    SuperChart,
)

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
        assert picture.chart.elements[0].points == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]


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
        with pytest.raises(SandboxException, match="no r here: python, javascript, typescript, bash"):
            sandbox.run_code("1", language="r")


def test_bash():
    with Sandbox.create(envs={"MADE": "with"}) as sandbox:
        printed = []
        run = sandbox.run_code(
            "echo $MADE; echo err >&2; cd /tmp; x=5; f() { echo f; }", language="bash", on_stdout=printed.append
        )
        assert ("".join(run.logs.stdout), "".join(run.logs.stderr), run.error) == ("with\n", "err\n", None)
        assert [message.line for message in printed] == ["with\n"]
        assert "".join(sandbox.run_code("pwd; echo $x; f", language="bash").logs.stdout) == "/tmp\n5\nf\n"
        assert "".join(sandbox.run_code("echo $FOO", language="bash", envs={"FOO": "bar"}).logs.stdout) == "bar\n"
        assert "".join(sandbox.run_code("echo ${FOO:-none}", language="bash").logs.stdout) == "none\n"
        failed = sandbox.run_code("(exit 3)", language="bash").error
        assert (failed.name, failed.value) == ("NonZeroExit", "3")

        with pytest.raises(TimeoutException):
            sandbox.run_code("sleep 100", language="bash", timeout=1)
        assert "".join(sandbox.run_code("echo $x", language="bash").logs.stdout) == "5\n"
        assert sandbox.run_code("exit 4", language="bash").error.name == "UnexpectedEndOfExecution"
        assert "".join(sandbox.run_code("echo ${x:-new}", language="bash").logs.stdout) == "new\n"

        context = sandbox.create_code_context(cwd="/etc", language="bash")
        sandbox.run_code("x=own", context=context)
        assert "".join(sandbox.run_code("pwd; echo $x", context=context).logs.stdout) == "/etc\nown\n"
        sandbox.restart_code_context(context)
        assert "".join(sandbox.run_code("pwd; echo ${x:-new}", context=context).logs.stdout) == "/etc\nnew\n"
        sandbox.remove_code_context(context)
        with pytest.raises(SandboxException):
            sandbox.run_code("true", context=context)


def test_charts():
    with Sandbox.create() as sandbox:

        def chart(code):
            (result,) = sandbox.run_code("import matplotlib.pyplot as plt\n" + code).results
            assert result.png
            return result.chart

        line = chart("plt.plot([1, 2], [3, 4], label='l'); plt.title('T'); plt.xlabel('Time (s)'); plt.show()")
        assert isinstance(line, LineChart)
        assert (line.title, line.x_label, line.x_unit, line.y_label) == ("T", "Time (s)", "s", None)
        assert (line.elements[0].label, line.elements[0].points) == ("l", [(1.0, 3.0), (2.0, 4.0)])
        assert line.x_scale is ScaleType.LINEAR
        assert len(line.x_ticks) == len(line.x_tick_labels) > 1
        scatter = chart("plt.scatter([1, 2], [3, 4], label='D')\nplt.show()")
        assert isinstance(scatter, ScatterChart)
        assert scatter.elements[0].points == [(1.0, 3.0), (2.0, 4.0)]
        bar = chart("plt.bar(['A', 'B'], [1, 2], label='g')\nplt.show()")
        assert isinstance(bar, BarChart)
        assert [(each.label, each.group, each.value) for each in bar.elements] == [("A", "g", 1.0), ("B", "g", 2.0)]
        pie = chart("plt.pie([90, 10], labels=['No', 'Yes'])\nplt.show()")
        assert isinstance(pie, PieChart)
        assert [(each.label, each.angle, each.radius) for each in pie.elements] == [("No", 324, 1), ("Yes", 36, 1)]
        box = chart("plt.boxplot([[1, 2, 3, 4, 50]], tick_labels=['A'])\nplt.show()")
        assert isinstance(box, BoxAndWhiskerChart)
        (only,) = box.elements
        assert (only.label, only.min, only.first_quartile, only.median) == ("A", 1, 2, 3)
        assert (only.third_quartile, only.max, only.outliers) == (4, 4, [50])
        both = chart("f, a = plt.subplots(1, 2); f.suptitle('S'); a[0].plot([1, 2]); a[1].bar(['A'], [1]); f")
        assert isinstance(both, SuperChart)
        assert (both.title, [type(each) for each in both.elements]) == ("S", [LineChart, BarChart])
        assert chart("plt.plot(range(6000))\nplt.show()") is None
        hostile = "from IPython.display import display\ndisplay({'application/vnd.cove.chart+json': 1}, raw=True)"
        assert sandbox.run_code(hostile).results[0].chart is None


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
