// A thread beside the executor that interrupts its runs. It reads the numbers of runs, one in a line. The executor is asked
// first; code that never lets the event loop go on is terminated: nothing else reaches it.

import { Session } from "node:inspector";
import { Socket } from "node:net";
import { parentPort, workerData } from "node:worker_threads";

import { COUNT, IDLE, PHASE, PONG, RUNNING, TERMINATING } from "./phases.mjs";

const PATIENCE_MILLISECONDS = 100;
const { state, descriptor } = workerData;
let isTerminating = false;

const interruptions = new Socket({ fd: descriptor, readable: true, writable: false });
interruptions.on("error", () => {}); // user code has closed it: then the runtime ends an executor that does not stop
interruptions.on("data", (lines) => {
  const count = Number(lines.toString("latin1").trimEnd().split("\n").at(-1));
  if (!isTerminating && isOpen(count) && isStuck(count) && isOpen(count)) terminate(count);
});

// It runs, or has not begun because something that an earlier run has left behind does not stop.
function isOpen(count) {
  const latest = Atomics.load(state, COUNT);
  return latest < count || (latest === count && Atomics.load(state, PHASE) !== IDLE);
}

function isStuck(count) {
  const before = Atomics.load(state, PONG);
  parentPort.postMessage({ kind: "interrupt", count });
  return Atomics.wait(state, PONG, before, PATIENCE_MILLISECONDS) === "timed-out";
}

// From here on a run that ends by itself leaves it to the message to say so: what it does could be cut off.
function terminate(count) {
  const phase = Atomics.compareExchange(state, PHASE, RUNNING, TERMINATING);
  if (phase === IDLE && Atomics.load(state, COUNT) === count) return;
  isTerminating = true;
  const session = new Session();
  session.connectToMainThread();
  session.post("Runtime.terminateExecution", () => {
    session.disconnect();
    isTerminating = false;
    parentPort.postMessage({ kind: "terminated", count });
  });
}
