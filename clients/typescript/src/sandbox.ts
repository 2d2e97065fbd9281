/** One sandbox: commands, processes, sessions, terminals, code and ports. */

import { Code } from "./code.js";
import { Files } from "./files.js";
import { Process, toProcess } from "./process.js";
import { Session, execResult } from "./session.js";
import { TerminalConnection } from "./terminal.js";
import { type Transport } from "./transport.js";
import {
  type Answer,
  type Body,
  type ExecResult,
  type ExposedPort,
  type JournalEvent,
  type Network,
  type NetworkEvent,
  type NetworkPolicy,
  type OperationName,
  type SandboxInfo,
  type SessionInfo,
  type TerminalInfo,
  type Usage,
} from "./types.js";

/** Holds nothing but its id. */
export class Sandbox {
  readonly files: Files;
  readonly code: Code;

  constructor(
    readonly transport: Transport,
    readonly id: string,
  ) {
    this.files = new Files(transport, id);
    this.code = new Code(transport, id);
  }

  get #path(): { sandbox: string } {
    return { sandbox: this.id };
  }

  info(): Promise<SandboxInfo> {
    return this.transport.call("get_sandbox", { path: this.#path });
  }

  usage(): Promise<Usage> {
    return this.transport.call("get_usage", { path: this.#path });
  }

  stop(): Promise<void> {
    return this.transport.call("stop_sandbox", { path: this.#path });
  }

  start(): Promise<void> {
    return this.transport.call("start_sandbox", { path: this.#path });
  }

  pause(): Promise<void> {
    return this.transport.call("pause_sandbox", { path: this.#path, body: {} });
  }

  destroy(): Promise<void> {
    return this.transport.call("destroy_sandbox", { path: this.#path });
  }

  /** Keep the files as they are now. */
  snapshot(name?: string): Promise<Answer<"snapshot_sandbox">> {
    return this.transport.call("snapshot_sandbox", { path: this.#path, body: name === undefined ? {} : { name } });
  }

  /** Make copies of this sandbox as it is now. */
  async fork(count = 1): Promise<Sandbox[]> {
    const made = await this.transport.call("fork_sandbox", { path: this.#path, body: { count } });
    return made.map((each) => new Sandbox(this.transport, each.id));
  }

  /** Run one command. A command that fails is a result, not an error. */
  async exec(command: string | string[], options: Omit<Body<"exec">, "command"> = {}, signal?: AbortSignal): Promise<ExecResult> {
    return execResult(await this.transport.call("exec", { path: this.#path, body: { ...options, command }, signal }));
  }

  async startProcess(command: string | string[], options: Omit<Body<"start_process">, "command"> = {}): Promise<Process> {
    const info = await this.transport.call("start_process", { path: this.#path, body: { ...options, command } });
    return toProcess(this.transport, this.id, info);
  }

  async processes(): Promise<Process[]> {
    const found = await this.transport.call("list_processes", { path: this.#path });
    return found.map((info) => toProcess(this.transport, this.id, info));
  }

  async process(id: string): Promise<Process> {
    const info = await this.transport.call("get_process", { path: { ...this.#path, process: id } });
    return toProcess(this.transport, this.id, info);
  }

  /** Start a shell with state. */
  async createSession(options: Body<"create_session"> = {}): Promise<Session> {
    const made = await this.transport.call("create_session", { path: this.#path, body: options });
    return new Session(this.transport, this.id, made.id);
  }

  sessions(): Promise<SessionInfo[]> {
    return this.transport.call("list_sessions", { path: this.#path });
  }

  session(id: string): Session {
    return new Session(this.transport, this.id, id);
  }

  /** Get or create a terminal. */
  openTerminal(options: Body<"terminal"> = {}): Promise<Answer<"terminal">> {
    return this.transport.call("terminal", { path: this.#path, body: options });
  }

  terminals(): Promise<TerminalInfo[]> {
    return this.transport.call("list_terminals", { path: this.#path });
  }

  /** View a terminal and type; `since` is a cursor that the viewer has seen already. */
  connectTerminal(id: string, since: string | null = null): TerminalConnection {
    return new TerminalConnection(this.transport, this.id, id, since);
  }

  destroyTerminal(id: string): Promise<void> {
    return this.transport.call("destroy_terminal", { path: { ...this.#path, terminal: id } });
  }

  /** Let others reach a port by a URL. */
  exposePort(port: number, name?: string): Promise<ExposedPort> {
    const body = name === undefined ? { port } : { port, name };
    return this.transport.call("expose_port", { path: this.#path, body });
  }

  ports(): Promise<ExposedPort[]> {
    return this.transport.call("list_ports", { path: this.#path });
  }

  unexposePort(port: number): Promise<void> {
    return this.transport.call("unexpose_port", { path: { ...this.#path, port: String(port) } });
  }

  setNetwork(network: Network | NetworkPolicy): Promise<void> {
    return this.transport.call("set_network", { path: this.#path, body: { network } });
  }

  /** What was done to the sandbox and in it. */
  journal(follow = false, signal?: AbortSignal): AsyncGenerator<JournalEvent> {
    return this.#events<"journal", JournalEvent>("journal", follow, signal);
  }

  /** What the network policy allowed and refused. */
  networkLog(follow = false, signal?: AbortSignal): AsyncGenerator<NetworkEvent> {
    return this.#events<"network_log", NetworkEvent>("network_log", follow, signal);
  }

  async *#events<Name extends OperationName & ("journal" | "network_log"), Event>(
    name: Name,
    follow: boolean,
    signal?: AbortSignal,
  ): AsyncGenerator<Event> {
    const stream = this.transport.events<"journal" | "network_log">(name, { path: this.#path, query: { follow }, signal });
    for await (const event of stream) yield event.fields as Event;
  }
}
