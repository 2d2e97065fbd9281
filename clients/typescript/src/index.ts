/** Client of Cove servers, for browsers and Node.js. */

export { Backoff } from "./backoff.js";
export { Code } from "./code.js";
export { ConnectionLost, CoveError } from "./errors.js";
export { Cove } from "./client.js";
export { Files } from "./files.js";
export { Process } from "./process.js";
export { Sandbox } from "./sandbox.js";
export { Session } from "./session.js";
export { TerminalConnection } from "./terminal.js";
export { Transport, type Options, type StreamEvent } from "./transport.js";
export type * from "./types.js";
