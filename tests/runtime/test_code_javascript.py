"""JavaScript and TypeScript contexts: state, results, errors, ends."""

import asyncio

import pytest
from support.inside import commands_inside

from cove import AsyncSandbox, ContextCrashed, Execution, Outcome
from cove.runtime.interpreters import find_node

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(find_node() is None, reason="there is no Node.js below /usr"),
    pytest.mark.pure,
]

VALUES = [
    ("1 + 1", "2"),
    ("'text'", "'text'"),
    ("({a: 1, b: [1, 2]})", "{ a: 1, b: [ 1, 2 ] }"),
    ("({a: 1});", "{ a: 1 }"),
    ("1 // comment", "1"),
    ("/* before */ 2 /* after */;", "2"),
    ("const x = 1; let y = 2; var z = 3; [x, y, z]", "[ 1, 2, 3 ]"),
    (
        "const {a, b: [c, ...d], e = 5, ...f} = {a: 1, b: [2, 3, 4], g: 6}; [a, c, d, e, f]",
        "[ 1, 2, [ 3, 4 ], 5, { g: 6 } ]",
    ),
    ("let unset; unset === undefined", "true"),
    ("class K { #p = 4; get p() { return this.#p } }; new K().p", "4"),
    ("function f(n) { return n ? n * f(n - 1) : 1 } f(5)", "120"),
    ("const early = g(); function g() { return 'hoisted' } early", "'hoisted'"),
    ("async function h() { return 6 } h()", "6"),
    ("const arrow = () => 7; arrow.name + arrow()", "'arrow7'"),
    ("for (var i = 0; i < 3; i++); i", "3"),
    ("for (var k of [1, 2]); k", "2"),
    ("if (true) { var inBlock = 8 } inBlock", "8"),
    ("for (const n of [1]) { let m = n } typeof n + typeof m", "'undefinedundefined'"),
    ("await new Promise(resolve => setTimeout(resolve, 1)); 9", "9"),
    ("Promise.resolve(10)", "10"),
    ("for await (const n of (async function* () { yield 11 })()) globalThis.last = n; last", "11"),
    ("require('node:path').basename('/a/b')", "'b'"),
    ("(await import('node:os')).EOL", "'\\n'"),
    ("import fs from 'node:fs'; fs.existsSync('/')", "true"),
    ("import {join as j, sep} from 'node:path'; import * as p from 'node:path'; j('a', p.sep, 'b')", "'a/b'"),
    ("'use strict'; const strict = 12; strict", "12"),
    ("export const exported = 13; exported", "13"),
    ("10n ** 20n", "100000000000000000000n"),
    ("`é${'ü'}`", "'éü'"),
    ("label: for (;;) { break label } 14", "14"),
    ("null", "null"),
    ("new Map([[1, {a: 2}]])", "Map(1) { 1 => { a: 2 } }"),
    ("010 + 1", "9"),
    ("process.argv.length", "1"),
]


@pytest.mark.parametrize(("code", "text"), VALUES)
async def test_the_last_expression_is_the_result(code: str, text: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        execution = await sandbox.run_code(code, language="javascript")
        assert (execution.error, execution.text, execution.stderr) == (None, text, "")


async def run_all(language: str, *cells: str) -> list[Execution]:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context(language)
        return [await context.run(cell) for cell in cells]


async def test_plain_values_come_as_json_too() -> None:
    (value,) = await run_all("javascript", "({a: [1, 'x', null]})")
    assert value.results[0].json == {"a": [1, "x", None]}


async def test_names_live_on_and_may_be_declared_again() -> None:
    ended = await run_all(
        "javascript",
        "const k = 1; let l = 2; class C { v = 1 } function f() { return 1 }",
        "const k = 10; let l = 20; class C { v = 2 } function f() { return 2 }",
        "[k, l, new C().v, f()]",
    )
    assert ended[-1].text == "[ 10, 20, 2, 2 ]"
    assert [execution.execution_count for execution in ended] == [1, 2, 3]


async def test_statements_have_no_result_and_undefined_is_none() -> None:
    ended = await run_all("javascript", "let a = 1", "undefined", "void 0", "")
    assert [execution.results for execution in ended] == [()] * 4


async def test_console_is_separated_into_the_two_streams_in_order() -> None:
    (ended,) = await run_all(
        "javascript",
        "console.log('a'); console.error('b'); console.info('c'); console.warn('d'); process.stdout.write('e')",
    )
    assert (ended.stdout, ended.stderr) == ("a\nc\ne", "b\nd\n")


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("nope", "ReferenceError", "nope is not defined"),
        ("null.x", "TypeError", "Cannot read properties of null (reading 'x')"),
        ("throw new RangeError('far')", "RangeError", "far"),
        ("throw 5", "Thrown", "5"),
        ("throw {a: 1}", "Thrown", "{ a: 1 }"),
        ("throw undefined", "Thrown", "undefined"),
        ("await Promise.reject(new Error('rejected'))", "Error", "rejected"),
        ("let =", "SyntaxError", "The keyword 'let' is reserved (1:0)"),
        ("}", "SyntaxError", "Unexpected token (1:0)"),
        ("(function f() { f() })()", "RangeError", "Maximum call stack size exceeded"),
    ],
)
async def test_an_error_is_a_result_and_the_context_goes_on(code: str, name: str, message: str) -> None:
    failed, after = await run_all("javascript", code, "40 + 2")
    assert failed.error is not None
    assert (failed.error.name, failed.error.message) == (name, message)
    assert name in failed.error.traceback or name == "Thrown"
    assert "executor" not in failed.error.traceback
    assert after.text == "42"


@pytest.mark.parametrize(
    "code",
    [
        "console.log('x'.repeat(5e6 - 1))",
        "for (let n = 0; n < 5e4; n++) console.log('x'.repeat(99))",
        "process.stdout.write(Buffer.alloc(4e6, 'x')); process.stdout.write('78'.repeat(1e6), 'hex')",
        "await new Promise((resolve) => process.stdout.write('x'.repeat(5e6), resolve))",
        "require('node:stream').Readable.from(['x'.repeat(5e6)]).pipe(process.stdout); await new Promise(setImmediate)",
        "require('node:child_process').execSync('yes | head -c 5000000', {stdio: 'inherit'})",
        "require('node:child_process').execSync(`node -e 'console.log(1)'; yes | head -c 4999998`, {stdio: 'inherit'})",
        "require('node:child_process').execSync(`node -e ''`, {stdio: 'inherit'}); console.log('x'.repeat(5e6 - 1))",
    ],
)
async def test_all_that_a_run_prints_is_its_own(code: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        assert len((await context.run(code + "; 0")).stdout) == 5_000_000
        assert (await context.run("1")).stdout == ""


async def test_a_run_that_prints_until_its_timeout_leaves_nothing_for_the_next() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        for _ in range(5):
            flood = await context.run("while (true) console.log('x'.repeat(1000))", timeout=0.2)
            assert flood.outcome is Outcome.TIMED_OUT
            assert (await context.run("console.log('next')")).stdout == "next\n"


async def test_late_errors_are_printed_and_kill_nothing() -> None:
    ended = await run_all(
        "javascript",
        "setTimeout(() => { throw new Error('late throw') }, 1); Promise.reject(new Error('late rejection')); 1",
        "await new Promise(resolve => setTimeout(resolve, 50)); 2",
    )
    printed = ended[0].stderr + ended[1].stderr
    assert "late throw" in printed
    assert "late rejection" in printed
    assert ended[1].text == "2"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("enum E { A = 3, B } E.B", "4"),
        ("interface I { x: number } const i: I = { x: 1 }; i.x", "1"),
        ("function id<T>(value: T): T { return value } id<string>('s')", "'s'"),
        ("type T = string | number; let t: T = 5 as T; t", "5"),
        (
            "abstract class Q { constructor(private n: number) {} get() { return this.n } } "
            "class R extends Q {} new R(4).get()",
            "4",
        ),
        ("const v = { a: 1 } satisfies Record<string, number>; v!.a", "1"),
    ],
)
async def test_types_are_stripped(code: str, text: str) -> None:
    (ended,) = await run_all("typescript", code)
    assert (ended.error, ended.text) == (None, text)


STUCK = [
    "while (true) {}",
    "await new Promise(() => {})",
    "for (;;) { try { null.x } catch {} }",
    "for (;;) await 1",
    "await null; while (true) {}",
    "await new Promise((resolve) => setTimeout(resolve, 10)); for (;;) await 1",
    "try { for (;;) await 1 } finally { for (;;) await 1 }",
    "for await (const n of (async function* () { for (;;) yield 1 })()) {}",
    "const again = () => Promise.resolve().then(again); await again()",
    "const tick = () => process.nextTick(tick); tick(); await new Promise(() => {})",
    "setInterval(() => { for (;;) {} }, 5); await new Promise(() => {})",
    "await null; /(a+)+$/.test('a'.repeat(50) + 'b')",
    "({ get [Symbol.toStringTag]() { for (;;) {} } })",
]


@pytest.mark.parametrize("code", STUCK)
async def test_a_timeout_interrupts_and_keeps_the_state(code: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        await context.run("const kept = 1")
        for _ in range(3):
            stopped = await context.run(f"console.log('on'); {code}", timeout=0.2)
            assert (stopped.outcome, stopped.stdout) == (Outcome.TIMED_OUT, "on\n")
            assert stopped.error is not None
            assert stopped.error.name == "KeyboardInterrupt"
            assert stopped.error.traceback == "KeyboardInterrupt: interrupted"
            await context.run("for (const id of Array(1000).keys()) clearInterval(id)", timeout=5)
            assert (await context.run("kept")).text == "1"
        assert (await context.run("await new Promise((resolve) => setTimeout(resolve, 1, 7))")).text == "7"


async def test_interrupt_ends_a_run_that_never_lets_node_go_on_and_only_that() -> None:
    async with AsyncSandbox.create() as sandbox:
        context, other = [await sandbox.create_code_context("javascript") for _ in range(2)]
        await context.run("const kept = 1")
        for _ in range(3):
            events = context.stream("console.log('on'); for (;;) await 1")
            assert getattr(await anext(events), "text", None) == "on\n"
            following = asyncio.create_task(context.run("kept"))
            await context.interrupt()
            assert "KeyboardInterrupt" in str([event async for event in events])
            assert (await following).text == "1"
        assert (await other.run("2")).text == "2"


async def test_interruptions_at_any_moment_end_no_other_run_than_theirs() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        for number in range(40):
            await context.run(
                "const until = Date.now() + 160; while (Date.now() < until) await 1", timeout=0.002 * number
            )
            assert (await context.run(f"await null; {number}")).text == str(number)


async def test_what_is_stuck_between_two_runs_is_ended_by_the_next_timeout() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        await context.run("const kept = 1; setTimeout(() => { for (;;) {} }, 1); kept")
        await context.run("kept", timeout=0.3)
        assert (await context.run("kept", timeout=20)).text == "1"


async def test_code_that_takes_away_the_means_to_interrupt_it_is_ended_and_says_so() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        code = "require('fs').closeSync(4); for (;;) await 1"
        assert (await context.run(code, timeout=0.2)).outcome is Outcome.TIMED_OUT
        with pytest.raises(ContextCrashed):
            await context.run("1")
        await context.delete()
        assert await commands_inside(sandbox) == []


@pytest.mark.parametrize("code", ["process.exit(3)", "process.kill(process.pid, 'SIGKILL')", "process.abort()"])
async def test_an_executor_that_dies_is_noticed_at_once(code: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        context, other = [await sandbox.create_code_context("javascript") for _ in range(2)]
        for cell in (code, "1"):
            with pytest.raises(ContextCrashed):
                await asyncio.wait_for(context.run(cell), 20)
        assert (await other.run("1")).text == "1"


async def test_user_code_that_writes_to_the_channel_harms_only_its_own_context() -> None:
    async with AsyncSandbox.create() as sandbox:
        context, other = [await sandbox.create_code_context("javascript") for _ in range(2)]
        with pytest.raises(ContextCrashed):
            await asyncio.wait_for(
                context.run("require('node:fs').writeSync(3, 'garbage!'.repeat(100)); await new Promise(() => {})"), 20
            )
        assert (await other.run("2")).text == "2"


LEAVE = """
globalThis.seen = %(own)d; process.env["OWNER%(own)d"] = "x"; require("node:path").owner = %(own)d;
require("node:fs").mkdirSync("/tmp/own-%(own)d", { recursive: true }); process.chdir("/tmp/own-%(own)d");
globalThis.file = require("node:fs").openSync("/tmp/own-%(own)d/open", "w"); seen
"""
LOOK = """
const fs = require("node:fs");
const owners = Object.keys(process.env).filter((name) => name.startsWith("OWNER"));
const target = (fd) => { try { return fs.readlinkSync(`/proc/self/fd/${fd}`) } catch { return "" } };
const open = fs.readdirSync("/proc/self/fd").map(target).filter((path) => path.startsWith("/tmp/own-"));
[globalThis.seen, require("node:path").owner, process.cwd(), owners.join(), open.join()].join(" ")
"""


@pytest.mark.parametrize("language", ["javascript", "typescript"])
async def test_sixteen_contexts_see_nothing_of_each_other_however_often_they_run(language: str) -> None:
    async with AsyncSandbox.create() as sandbox:
        contexts = await asyncio.gather(*(sandbox.create_code_context(language) for _ in range(16)))
        fresh = [await context.run(LOOK) for context in contexts]
        assert {execution.text for execution in fresh} == {"'  /workspace  '"}
        for own, context in enumerate(contexts):  # one after the other
            assert (await context.run(LEAVE % {"own": own})).text == str(own)
        for _ in range(50):  # all at once
            looks = await asyncio.gather(*(context.run(LOOK) for context in contexts))
            assert [execution.text for execution in looks] == [
                f"'{own} {own} /tmp/own-{own} OWNER{own} /tmp/own-{own}/open'" for own in range(16)
            ]
        # The same probe in one context does find what was left there.
        await contexts[0].run(LEAVE % {"own": 99})
        assert "OWNER0,OWNER99" in str((await contexts[0].run(LOOK)).text)


async def test_runs_of_one_context_take_turns_in_order() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        await context.run("globalThis.order = []")
        cells = [
            f"await new Promise(resolve => setTimeout(resolve, {20 - at})); order.push({at}); {at}" for at in range(20)
        ]
        ended = await asyncio.gather(*map(context.run, cells))
        assert [execution.text for execution in ended] == [str(at) for at in range(20)]
        assert (await context.run("order")).results[0].json == list(range(20))


async def test_code_that_is_streamed_arrives_while_it_runs() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        events = context.stream("console.log('first'); await new Promise(() => {})")
        first = await asyncio.wait_for(anext(events), 20)
        assert getattr(first, "text", None) == "first\n"
        await events.aclose()
        assert (await context.run("1")).text == "1"


async def test_deleting_a_context_while_it_runs_ends_all_it_started() -> None:
    async with AsyncSandbox.create() as sandbox:
        context = await sandbox.create_code_context("javascript")
        code = "require('node:child_process').spawn('sleep', ['1000']); console.log('up'); await new Promise(() => {})"
        events = context.stream(code)
        assert getattr(await anext(events), "text", None) == "up\n"
        await context.delete()
        with pytest.raises(ContextCrashed):
            await anext(events)
        assert await commands_inside(sandbox) == []
