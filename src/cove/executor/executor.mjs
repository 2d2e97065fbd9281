// One JavaScript or TypeScript context: told over descriptor 3 what to run. Text goes to the real standard
// output and error; results and errors go to the channel. A request is four bytes of length, then JSON.

import { writeSync } from "node:fs";
import { createRequire } from "node:module";
import { Socket } from "node:net";
import { Writable } from "node:stream";
import { inspect } from "node:util";
import vm from "node:vm";
import { Worker } from "node:worker_threads";

import { errorMessage, frame, valueMessage } from "./channel.mjs";
import { COUNT, IDLE, PHASE, PONG, RUNNING, TERMINATING } from "./phases.mjs";
import { rewrite } from "./rewrite.mjs";

const CHANNEL = 3;
const INTERRUPTIONS = 4;
const INTERRUPTED = "ERR_SCRIPT_EXECUTION_INTERRUPTED";
const MOST_RESULT_CHARACTERS = 16 << 20;
const FULL_MILLISECONDS = 1;
const [language, oldest] = process.argv.slice(2);

if (Number.parseInt(process.versions.node, 10) < Number(oldest)) {
  process.stderr.write(`Node.js ${process.versions.node} is older than ${oldest}\n`);
  process.exit(1);
}
// Started by a loader, it takes that for itself; the name it was called by is its own.
if (process.argv0.startsWith("/")) process.execPath = process.argv0;

const channel = new Socket({ fd: CHANNEL, readable: true, writable: true });
let received = Buffer.alloc(0);
const waiting = [];
const state = new Int32Array(new SharedArrayBuffer(12));
let current = null;
let count = 0;
let interruptRun = null;
let stripTypes = (code) => code;

// Node's own stream writes what the pipe has room for and keeps the rest for later, when the run may be over; and an
// interruption in the middle of it leaves it stuck for ever. This one keeps nothing.
class Output extends Writable {
  constructor(fd) {
    super();
    this.fd = fd;
  }

  write(chunk, encoding, done) {
    const isShort = typeof encoding === "function";
    writeAll(this.fd, Buffer.from(chunk, isShort ? undefined : encoding));
    const told = isShort ? encoding : done;
    if (told) process.nextTick(told);
    return true;
  }

  _write(chunk, _encoding, done) {
    writeAll(this.fd, chunk);
    done();
  }
}

function writeAll(fd, rest) {
  while (rest.length) {
    try {
      rest = rest.subarray(writeSync(fd, rest));
    } catch (error) {
      // A child that shares the pipe may have made it one that does not wait; one that the user has closed takes nothing.
      if (error.code !== "EAGAIN") return;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, FULL_MILLISECONDS);
    }
  }
}

channel.on("data", (data) => {
  received = Buffer.concat([received, data]);
  while (received.length >= 4 && received.length >= 4 + received.readUInt32BE(0)) {
    const end = 4 + received.readUInt32BE(0);
    waiting.push(JSON.parse(received.subarray(4, end).toString("utf8")));
    received = received.subarray(end);
  }
  next();
});
channel.on("close", () => process.exit(0));

function next() {
  if (current || !waiting.length) return;
  const request = waiting.shift();
  current = { count: (count += 1) };
  Atomics.store(state, PHASE, RUNNING);
  Atomics.store(state, COUNT, count);
  const cell = current;
  if (request.cwd) enter(request.cwd);
  run(request.code).then(
    (values) => conclude(cell, () => (values && values[0] !== undefined ? show(values[0]) : "")),
    (error) => conclude(cell, () => errorMessage(describe(error))),
  );
}

// A directory that is gone is the code's to find out.
function enter(directory) {
  try {
    process.chdir(directory);
    if (globalThis.require === ours) globalThis.require = ours = createRequire(`${directory}/`);
  } catch {}
}

// What `report` gives may be the user's doing, so that it can fail and never end: it belongs to the run.
function conclude(cell, report) {
  if (cell !== current) return;
  let frames;
  try {
    frames = report();
  } catch (error) {
    frames = errorMessage(describe(error));
  }
  if (Atomics.compareExchange(state, PHASE, RUNNING, IDLE) === RUNNING) finish(frames);
}

function finish(frames) {
  channel.write(Buffer.concat([Buffer.from(frames), frame("E", String(current.count))]));
  current = null;
  setImmediate(next);
}

function onBreaker({ kind, count: which }) {
  if (kind === "interrupt") {
    Atomics.add(state, PONG, 1);
    Atomics.notify(state, PONG);
    if (current?.count === which) interruptRun?.();
    return;
  }
  const isCut = Atomics.compareExchange(state, PHASE, TERMINATING, IDLE) === TERMINATING;
  if (current && (isCut || current.count === which)) {
    Atomics.store(state, PHASE, IDLE);
    finish(errorMessage(describe({ code: INTERRUPTED })));
  }
}

// Code that waits is interrupted through this promise, code that never gives up the thread by the breaker.
async function run(code) {
  const { script, names } = rewrite(stripTypes(code));
  for (const name of names) if (!(name in globalThis)) globalThis[name] = undefined;
  const compiled = new vm.Script(script, {
    filename: `cell-${count}.js`,
    importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
  const interrupted = new Promise((_, reject) => {
    interruptRun = () => reject({ code: INTERRUPTED });
  });
  interrupted.catch(() => {});
  try {
    return await Promise.race([compiled.runInThisContext(), interrupted]);
  } finally {
    interruptRun = null;
  }
}

function show(value) {
  const text = inspect(value, { depth: 4, maxArrayLength: 200, maxStringLength: MOST_RESULT_CHARACTERS });
  try {
    return valueMessage(text, isPlain(value) ? JSON.parse(JSON.stringify(value)) : undefined);
  } catch {
    return valueMessage(text); // a cycle or a BigInt has no JSON
  }
}

function isPlain(value) {
  if (Array.isArray(value)) return true;
  return typeof value === "object" && value !== null && [Object.prototype, null].includes(Object.getPrototypeOf(value));
}

function describe(error) {
  if (error?.code === INTERRUPTED) {
    return { name: "KeyboardInterrupt", message: "interrupted", traceback: "KeyboardInterrupt: interrupted" };
  }
  const isError = error instanceof Error || (typeof error === "object" && error !== null && "stack" in error);
  if (isError) {
    const traceback = withoutOwnFrames(String(error.stack));
    return { name: String(error.name ?? "Error"), message: String(error.message), traceback };
  }
  return { name: "Thrown", message: inspect(error), traceback: `Thrown: ${inspect(error)}` };
}

// The cell is called by frames of ours, through some of Node's own.
function withoutOwnFrames(stack) {
  const lines = stack.split("\n");
  let end = lines.findIndex((line) => line.includes(import.meta.url));
  if (end < 0) return stack;
  while (lines[end - 1]?.includes("(node:vm:")) end -= 1;
  return lines.slice(0, end).join("\n");
}

for (const [name, fd] of [["stdout", 1], ["stderr", 2]]) {
  Object.defineProperty(process, name, { configurable: true, enumerable: true, value: new Output(fd) });
}
let ours = (globalThis.require = createRequire(`${process.cwd()}/`));
globalThis.module = { exports: {} };
globalThis.exports = globalThis.module.exports;
process.on("SIGINT", () => {}); // for what the code has started
for (const event of ["uncaughtException", "unhandledRejection"]) {
  process.on(event, (error) => process.stderr.write(`${describe(error).traceback}\n`));
}
process.removeAllListeners("warning");
process.on("warning", (warning) => {
  // Dynamic imports from a script are experimental in Node; that is no news for the user.
  if (warning.name !== "ExperimentalWarning") process.stderr.write(`${warning.stack}\n`);
});
process.argv = [process.execPath];
process.execArgv = [];
if (language === "typescript") {
  const { transform } = await import("sucrase");
  stripTypes = (code) => transform(code, { transforms: ["typescript"], keepUnusedImports: true, disableESTransforms: true }).code;
}
const breaker = new Worker(new URL("./breaker.mjs", import.meta.url), { workerData: { state, descriptor: INTERRUPTIONS } });
breaker.on("message", onBreaker);
breaker.unref();
channel.write(frame("R"));
