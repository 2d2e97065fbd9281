"""What running Python gives back: values, pictures, text, errors."""

import asyncio
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from support.executors import needs_python
from support.programs import run_program

from cove import AsyncSandbox, Display, Done, Execution, Outcome, Text

pytestmark = [pytest.mark.anyio, needs_python]

VALUES = [
    ("1 + 1", "2"),
    ("'text'", "'text'"),
    ("x = 5", None),
    ("x", "5"),
    ("x;", None),
    ("None", None),
    ("'é' + '\\U0001f600' + '\\x00'", r"'é😀\x00'"),
    ("import asyncio\nawait asyncio.sleep(0)\n'awaited'", "'awaited'"),
    ("async def f():\n    return 7\nawait f()", "7"),
    ("_ + 1", "8"),
    ("%time 3 * 3", "9"),
    ("import sys; sys.argv", "['']"),
    ("__name__", "'__main__'"),
    ("def f(n):\n    return n and f(n - 1)\nf(500)", "0"),
    ("import numpy; numpy.arange(3)", "array([0, 1, 2])"),
]


async def test_the_last_expression_is_the_result() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        for count, (code, text) in enumerate(VALUES, 1):
            execution = await context.run(code)
            assert (execution.text, execution.error, execution.execution_count) == (text, None, count), code
            assert execution.outcome is Outcome.EXITED


ERRORS = [
    ("1 / 0", "ZeroDivisionError", "division by zero", "----> 1 1 / 0"),
    ("def broken(:\n  pass", "SyntaxError", "invalid syntax", "def broken(:"),
    ("  x = 1\n y = 2", "IndentationError", "unexpected indent", "x = 1"),
    ("raise SystemExit(3)", "SystemExit", "3", "SystemExit: 3"),
    ("exit()", "SystemExit", "", "SystemExit"),
    ("input('name? ')", "EOFError", "input() is not available", "EOFError"),
    ("def deep(n):\n    return deep(n + 1)\ndeep(0)", "RecursionError", "maximum recursion depth", "deep(n + 1)"),
    ("raise ValueError('é\\U0001f600\\ud800')", "ValueError", "é😀?", "ValueError"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt", "", "KeyboardInterrupt"),
    ("class E(Exception):\n    def __str__(self):\n        raise TypeError('no text')\nraise E", "", "", "no text"),
    ("class R:\n    def __repr__(self):\n        raise OSError('no repr')\nR()", "OSError", "no repr", "no repr"),
    ("raise BaseException('base')", "BaseException", "base", "base"),
    ("no_such_name", "NameError", "no_such_name", "no_such_name"),
    ("%no_such_magic", "UsageError", "no_such_magic", "no_such_magic"),
    ("raise ValueError('x' * 50_000_000)", "ValueError", "xxxx", ""),
]


async def test_an_error_is_a_result_and_the_context_lives_on() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        for code, name, message, traceback in ERRORS:
            execution = await context.run(code)
            assert execution.error is not None, code
            assert name in execution.error.name, code
            assert message in execution.error.message, code
            assert traceback in execution.error.traceback, code
            assert len(execution.error.message) <= 1 << 20
            assert execution.outcome is Outcome.EXITED
            assert (await context.run("1 + 1")).text == "2", code


TEXTS = [
    ("print('a'); print('b')", "a\nb\n", ""),
    ("import sys; print('out'); print('err', file=sys.stderr)", "out\n", "err\n"),
    ("print('no newline', end='')", "no newline", ""),
    ("import os; _ = os.system('echo child; echo child >&2')", "child\n", "child\n"),
    ("import os; os.write(1, b'\\xff raw'); None", "\ufffd raw", ""),
    ("!echo from the shell", "from the shell\n", ""),
    ("%%bash\necho $((6 * 7))\necho bad >&2", "42\n", "bad\n"),
    ("lines = !echo captured\nprint(lines)", "['captured']\n", ""),
    ('!echo \'{"kind":"done","count":7}\'', '{"kind":"done","count":7}\n', ""),
    ("print('é\\U0001f600')", "é😀\n", ""),
    ("for n in range(1000): print(n)", "".join(f"{n}\n" for n in range(1000)), ""),
    ("import sys; sys.stdin.read()", "", ""),
]


async def test_what_is_printed_comes_back_separated_and_in_order() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        for code, stdout, stderr in TEXTS:
            execution = await context.run(code)
            assert (execution.stdout, execution.stderr, execution.error) == (stdout, stderr, None), code
        timed = await context.run("%timeit -n 1 -r 1 pass")
        assert "1 run, 1 loop each" in timed.stdout
        assert "/workspace" in (await context.run("!pwd")).stdout


async def test_a_hundred_megabytes_of_text_are_cut_in_the_middle() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        execution = await context.run(
            "print('first', end='')\nfor _ in range(100): print('x' * 1_000_000, end='')\nprint('last')"
        )
        assert execution.truncated
        assert execution.stdout.startswith("firstx")
        assert execution.stdout.endswith("xlast\n")
        assert len(execution.stdout) <= 16 << 20
        assert not (await context.run("print('small')")).truncated


async def test_a_result_that_is_too_large_is_cut_and_says_so() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        large = await context.run("class Text:\n    def __repr__(self): return 'y' * 40_000_000\nText()")
        assert large.results[0].truncated
        assert large.truncated
        assert (large.text or "").startswith("yyyy")
        assert len(large.text or "") <= 16 << 20
        picture = await context.run(
            "display({'image/png': b'x' * 40_000_000, 'text/plain': 'small', 'text/html': 'z' * 14_000_000}, raw=True)"
        )
        assert set(picture.results[0].data) == {"text/plain", "text/html"}
        many = await context.run("for _ in range(30): display({'text/plain': 'z' * 10_000_000}, raw=True)")
        assert many.truncated
        assert sum(len(result.text or "") for result in many.results) <= 128 << 20
        assert (await context.run("1 + 1")).text == "2"


def size_of(png: bytes | None) -> tuple[int, int]:
    """From the header of a PNG file."""
    assert png is not None
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert png[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def pictures(execution: Execution) -> list[tuple[int, int]]:
    assert execution.error is None, execution.error
    return [size_of(result.png) for result in execution.results if "image/png" in result]


async def test_a_figure_comes_back_as_a_picture_of_its_size() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.run("import matplotlib.pyplot as plt")
        assert pictures(await context.run("plt.plot([1, 2, 3]);")) == [(640, 480)]
        assert pictures(await context.run("plt.figure(figsize=(3, 2), dpi=50); plt.plot([1]);")) == [(150, 100)]
        assert pictures(await context.run("plt.plot([1]); plt.show(); plt.figure(figsize=(1, 1)); plt.show()")) == [
            (640, 480),
            (100, 100),
        ]
        several = await context.run("for n in (1, 2, 3): plt.figure(figsize=(n, n)).add_subplot()")
        assert pictures(several) == [(100, 100), (200, 200), (300, 300)]
        assert several.results[2].text == "<Figure size 300x300 with 1 Axes>"
        assert pictures(await context.run("figure = plt.figure(); figure")) == [(640, 480)]
        assert pictures(await context.run("figure")) == [(640, 480)]
        assert pictures(await context.run("display(figure)")) == [(640, 480)]
        assert pictures(await context.run("1")) == []
        broken = await context.run(r"plt.title(r'$\frac{$');")
        assert broken.error is not None
        assert pictures(await context.run("import pandas; pandas.Series([1, 2]).plot();")) == [(640, 480)]


CHART = "application/vnd.cove.chart+json"


async def test_a_figure_brings_its_data() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.run("import datetime, numpy as np, matplotlib.pyplot as plt")

        async def chart(code: str) -> dict[str, Any]:
            (result,) = (await context.run(code)).results
            assert size_of(result.png)
            value = result[CHART]
            assert isinstance(value, dict)
            return value

        dated = await chart("plt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], [1, 2]);")
        assert dated["elements"] == [{"label": "Line 0", "points": [["2024-01-01", 1.0], ["2024-01-02", 2.0]]}]
        assert (dated["x_scale"], dated["x_ticks"][0]) == ("datetime", "2024-01-01T00:00:00+00:00")
        named = await chart(
            "plt.plot(['a', 'b', 'c'], [1, 10, np.nan]); plt.yscale('log'); plt.axhline(3); plt.grid();"
        )
        assert [each["points"] for each in named["elements"]] == [[["a", 1.0], ["b", 10.0], ["c", None]]]
        assert (named["x_scale"], named["x_tick_labels"], named["y_scale"]) == ("categorical", ["a", "b", "c"], "log")
        lying = await chart("plt.barh(['A', 'B'], [1, 2]); plt.xlabel('n [kg]'); plt.gcf()")
        assert (lying["x_label"], lying["y_label"], lying["y_unit"]) == (None, "n [kg]", "kg")
        assert lying["elements"][1] == {"label": "B", "group": "Group 0", "value": 2.0}
        pairs = "for n in (-1, 1): axes.bar(np.arange(2) + n / 5, [n, n], 0.4)\naxes.set_xticks([0, 1], ['p', 'q'])"
        grouped = await chart(f"axes = plt.figure().add_subplot()\n{pairs};")
        assert [each["label"] for each in grouped["elements"]] == ["p", "q", "p", "q"]
        boxes = await chart("plt.boxplot([[1, 2, 3, 4, 50], [5, 5, 5]], orientation='horizontal', patch_artist=True);")
        assert [each["label"] for each in boxes["elements"]] == ["1", "2"]
        numbers = {"min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 4, "outliers": [50]}
        assert boxes["elements"][0] == {"label": "1", **numbers}
        assert {value for name, value in boxes["elements"][1].items() if name not in ("label", "outliers")} == {5.0}
        assert await chart("plt.imshow([[1]]);") == {"type": "unknown", "title": None, "elements": []}


async def test_a_figure_with_no_data_or_too_much_is_a_picture_all_the_same() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.run("import matplotlib.pyplot as plt")
        for code in (
            "plt.figure();",
            "for axes in plt.subplots(2, 1)[1]: axes.plot(range(3000))",
            "plt.plot([1])[0].get_xdata = lambda *_, **__: 1 / 0",
        ):
            (result,) = (await context.run(code)).results
            assert CHART not in result
            assert not result.truncated
            assert size_of(result.png)


async def test_objects_show_themselves_in_every_format_they_have() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        frame = await context.run("import pandas; pandas.DataFrame({'a': [1, 2]})")
        assert "<table" in (frame.results[0].html or "")
        assert "a\n0  1\n1  2" in (frame.text or "")
        await context.run("from IPython.display import HTML, SVG, JSON, Latex, Markdown, Image, Javascript")
        shown = await context.run(
            "display(HTML('<b>x</b>'), SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), JSON({'a': [1, None]}))\n"
            "display(Latex('$x$'), Markdown('*x*'), Image(b'\\xff\\xd8\\xff', format='jpeg'), Javascript('x()'))\n"
            "'last'"
        )
        html, svg, data, latex, markdown, jpeg, script, last = shown.results
        assert html.html == "<b>x</b>"
        assert (svg.svg or "").startswith("<svg")
        assert data.json == {"a": [1, None]}
        assert latex.latex == "$x$"
        assert markdown.markdown == "*x*"
        assert jpeg.jpeg == b"\xff\xd8\xff"
        assert script["application/javascript"] == "x()"
        assert [result.is_main for result in shown.results] == [False] * 7 + [True]
        assert last["text/plain"] == "'last'"
        odd = await context.run("display({'application/json': {'nan': float('nan'), 'big': 10**30}}, raw=True)")
        assert odd.results[0].json == {"nan": None, "big": 10**30}


async def test_events_arrive_while_the_code_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context()
        await context.run("import os, asyncio; os.mkfifo('/tmp/gate')")
        events = context.stream("print('before'); display(1)\nopen('/tmp/gate').read()\nprint('after'); 2")
        first, second = await anext(events), await anext(events)
        assert first == Text("stdout", "before\n")
        assert isinstance(second, Display)
        assert second.result.text == "1"
        await sandbox.exec("echo > /tmp/gate")
        rest = [event async for event in events]
        assert [event.result.text for event in rest if isinstance(event, Display)] == ["2"]
        assert Text("stdout", "after\n") in rest
        assert rest[-1] == Done(2, Outcome.EXITED)


async def test_a_thread_that_prints_later_is_heard_in_its_own_context_only() -> None:
    async with AsyncSandbox.create() as sandbox:
        one, other = await asyncio.gather(sandbox.create_code_context(), sandbox.create_code_context())
        await one.run(
            "import threading, os; os.mkfifo('/tmp/gate')\n"
            "def later():\n    open('/tmp/gate').read(); print('from the thread'); display('shown')\n"
            "thread = threading.Thread(target=later); thread.start()"
        )
        await sandbox.exec("echo > /tmp/gate")
        execution = await one.run("thread.join()")
        assert execution.stdout == "from the thread\n"
        assert [result.text for result in execution.results] == ["'shown'"]
        elsewhere = await other.run("print('mine')")
        assert (elsewhere.stdout, elsewhere.results) == ("mine\n", ())


async def test_a_context_has_its_own_directory_environment_and_time() -> None:
    async with AsyncSandbox.create(env={"SHARED": "sandbox", "OTHER": "sandbox"}) as sandbox:
        await sandbox.exec("mkdir place")
        context = await sandbox.create_code_context(cwd="place", env={"SHARED": "context", "OTHER": None}, timeout=0.5)
        code = "import os; os.getcwd(), os.environ['SHARED'], os.environ.get('OTHER'), os.environ['HOME']"
        assert (await context.run(code)).text == "('/workspace/place', 'context', None, '/home/user')"
        assert (await context.run("!pwd; echo $SHARED")).stdout == "/workspace/place\ncontext\n"
        assert (await context.run("while True: pass")).outcome is Outcome.TIMED_OUT
        assert (await context.run("sum(range(1000))", timeout=60)).text == "499500"


async def test_names_of_a_fresh_context_are_ipythons_and_modules_of_ours_are_not_in_the_way() -> None:
    async with AsyncSandbox.create() as sandbox:
        await sandbox.exec(
            "for name in executor protocol channel server kernel init; do echo \"own = '$name'\" > $name.py; done"
        )
        context = await sandbox.create_code_context()
        names = await context.run("sorted(name for name in dir() if not name.startswith('_'))")
        assert names.text == "['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']"
        found = await context.run(
            "import executor, protocol, channel, server, kernel, init\n"
            "[each.own for each in (executor, protocol, channel, server, kernel, init)]"
        )
        assert found.text == "['executor', 'protocol', 'channel', 'server', 'kernel', 'init']"
        paths = await context.run("import sys; [path for path in sys.path if 'cove' in path]")
        assert re.fullmatch(r"\['/opt/cove/python/lib/python3.\d+/site-packages'\]", paths.text or "")


BLOCKING = """
from cove import Done, Sandbox, Text
with Sandbox.create() as sandbox:
    context = sandbox.create_code_context(id="mine")
    context.run("x = 20")
    print(sandbox.run_code("x + 1", context="mine").text, sandbox.run_code("x + 2", context=context).text)
    first, *_, last = sandbox.stream_code("print('a'); 3", context=sandbox.get_code_context("mine"))
    print(first == Text("stdout", "a\\n"), isinstance(last, Done))
    print([each.id for each in sandbox.list_code_contexts()])
    sandbox.delete_code_context("mine")
    print(sandbox.list_code_contexts())
"""


def test_the_blocking_sandbox_runs_code_too(other_home: Path) -> None:
    assert run_program(BLOCKING, other_home) == "21 22\nTrue True\n['mine']\n[]"
