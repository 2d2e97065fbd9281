/** A process of a sandbox, and what it prints. */

import { type Transport } from "./transport.js";
import { type LogEvent, type ProcessInfo } from "./types.js";

export class Process {
  constructor(
    readonly transport: Transport,
    readonly sandbox: string,
    readonly info: ProcessInfo,
  ) {}

  get id(): string {
    return this.info.id;
  }

  get #path(): { sandbox: string; process: string } {
    return { sandbox: this.sandbox, process: this.id };
  }

  /** What it prints: every byte once, also when the connection breaks. The last event is its exit. */
  async *logs(options: { since?: string; follow?: boolean; lossless?: boolean } = {}, signal?: AbortSignal): AsyncGenerator<LogEvent> {
    const query = { follow: true, ...options };
    for await (const { fields, data } of this.transport.events("process_logs", { path: this.#path, query, signal })) {
      const event = fields as LogEvent;
      yield event.type === "output" ? { ...event, data } : event;
    }
  }

  /** Signal the whole tree. */
  async kill(signal: string | number = "KILL"): Promise<void> {
    await this.transport.call("kill_process", { path: this.#path, body: { signal } });
  }

  /** End the whole tree: TERM, then KILL after so many seconds. */
  async terminate(grace = 5): Promise<void> {
    await this.transport.call("terminate_process", { path: this.#path, body: { grace } });
  }

  /** Write to its standard input, which it must have been started with. */
  writeStdin(data: Uint8Array<ArrayBuffer>): Promise<void> {
    return this.transport.call("write_stdin", { path: this.#path, body: data });
  }

  closeStdin(): Promise<void> {
    return this.transport.call("close_stdin", { path: this.#path });
  }
}

export function toProcess(transport: Transport, sandbox: string, info: ProcessInfo): Process {
  return new Process(transport, sandbox, info);
}
