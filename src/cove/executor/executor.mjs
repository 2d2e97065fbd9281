// One JavaScript or TypeScript context: told over descriptor 3 what to run. Text goes to the real standard
// output and error; results and errors go to the channel. A request is four bytes of length, then JSON.

import { writeSync } from "node:fs";
import { createRequire } from "node:module";
import { Socket } from "node:net";
import { Writable } from "node:stream";
import { inspect } from "node:util";
import vm from "node:vm";

import { errorMessage, frame, valueMessage } from "./channel.mjs";
import { rewrite } from "./rewrite.mjs";

const CHANNEL = 3;
const INTERRUPTED = "ERR_SCRIPT_EXECUTION_INTERRUPTED";
const MOST_RESULT_CHARACTERS = 16 << 20;
const FULL_MILLISECONDS = 1;
const language = process.argv[2];

const channel = new Socket({ fd: CHANNEL, readable: true, writable: true });
let received = Buffer.alloc(0);
const waiting = [];
let isBusy = false;
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
  void next();
});
channel.on("close", () => process.exit(0));

async function next() {
  if (isBusy || !waiting.length) return;
  isBusy = true;
  const request = waiting.shift();
  count += 1;
  try {
    const values = await run(request.code);
    if (values && values[0] !== undefined) channel.write(show(values[0]));
  } catch (error) {
    channel.write(errorMessage(describe(error)));
  }
  channel.write(frame("E", String(count)));
  isBusy = false;
  void next();
}

// SIGINT ends code that never gives up the thread through breakOnSigint, and code that waits through this promise.
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
    return await Promise.race([compiled.runInThisContext({ breakOnSigint: true }), interrupted]);
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
globalThis.require = createRequire(`${process.cwd()}/`);
globalThis.module = { exports: {} };
globalThis.exports = globalThis.module.exports;
process.on("SIGINT", () => interruptRun?.());
for (const event of ["uncaughtException", "unhandledRejection"]) {
  process.on(event, (error) => process.stderr.write(`${describe(error).traceback}\n`));
}
process.removeAllListeners("warning");
process.on("warning", (warning) => {
  // Dynamic imports from a script are experimental in Node; that is no news for the user.
  if (warning.name !== "ExperimentalWarning") process.stderr.write(`${warning.stack}\n`);
});
process.argv = [process.argv[0]];
if (language === "typescript") {
  const { transform } = await import("sucrase");
  stripTypes = (code) => transform(code, { transforms: ["typescript"], keepUnusedImports: true, disableESTransforms: true }).code;
}
channel.write(frame("R"));
