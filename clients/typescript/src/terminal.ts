/** A viewer of a terminal, over a WebSocket that reconnects at its cursor. */

import { Backoff } from "./backoff.js";
import { ConnectionLost, errorFrom } from "./errors.js";
import { type Frame, FrameReader } from "./frames.js";
import { type Transport } from "./transport.js";
import { type TerminalEvent } from "./types.js";

const MOST_WAITING_BYTES = 4 << 20;
const MOST_MESSAGE_BYTES = 64 << 10;

/**
 * One viewer. What it has not taken is bounded: one that falls behind leaves, and returns at its cursor.
 * What is typed is sent once at most.
 */
export class TerminalConnection {
  #socket: WebSocket | null = null;
  #since: string | null;
  #isReady = false;
  readonly #closing = new AbortController();

  constructor(
    readonly transport: Transport,
    readonly sandbox: string,
    readonly id: string,
    since: string | null = null,
  ) {
    this.#since = since;
  }

  /** Whether what is typed is sent. */
  get isOpen(): boolean {
    return this.#socket?.readyState === 1;
  }

  /** Events until the program ends or the viewer is closed. */
  async *events(): AsyncGenerator<TerminalEvent> {
    const backoff = new Backoff(this.transport.patience);
    while (!this.#closing.signal.aborted) {
      try {
        for await (const event of this.#view()) {
          backoff.renew();
          this.#since = event.cursor;
          const isAgain = event.type === "ready" && this.#isReady;
          this.#isReady ||= event.type === "ready";
          if (!isAgain) yield event;
          if (event.type === "exit") return;
        }
      } catch (error) {
        if (this.#closing.signal.aborted) return;
        if (!(error instanceof ConnectionLost)) throw error;
        await backoff.pause(error, this.#closing.signal).catch((ended: unknown) => this.#unlessClosed(ended));
      }
    }
  }

  /** Type; control characters included. Throws when there is no connection: nothing was sent. */
  write(data: string | Uint8Array): void {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    if (!this.isOpen) throw new ConnectionLost("the terminal is not connected");
    for (let at = 0; at < bytes.length; at += MOST_MESSAGE_BYTES) {
      this.#socket?.send(bytes.slice(at, at + MOST_MESSAGE_BYTES));
    }
  }

  /** Change the size, for all viewers. */
  resize(cols: number, rows: number): void {
    if (this.isOpen) this.#socket?.send(JSON.stringify({ type: "resize", cols, rows }));
  }

  close(): void {
    this.#closing.abort(new ConnectionLost("this viewer is closed"));
    this.#socket?.close();
  }

  #unlessClosed(error: unknown): void {
    if (!this.#closing.signal.aborted) throw error;
  }

  async *#view(): AsyncGenerator<TerminalEvent> {
    const path = { sandbox: this.sandbox, terminal: this.id };
    const query = this.#since === null ? {} : { since: this.#since };
    const socket = this.transport.socket("connect_terminal", path, query);
    const messages = new Messages(socket);
    this.#socket = socket;
    try {
      await this.#opened(messages);
      const reader = new FrameReader();
      for await (const message of messages) {
        for (const frame of reader.feed(message)) {
          const event = eventOf(frame);
          if (event !== null) yield event;
        }
      }
    } finally {
      socket.close();
    }
    if (!this.#closing.signal.aborted) throw new ConnectionLost("the terminal's connection broke");
  }

  /** A WebSocket does not say why it was refused: ask for the terminal itself. */
  async #opened(messages: Messages): Promise<void> {
    if (await messages.opened) return;
    await this.transport.call("get_terminal", {
      path: { sandbox: this.sandbox, terminal: this.id },
      signal: this.#closing.signal,
    });
    throw new ConnectionLost("the terminal's connection was refused");
  }
}

function eventOf({ kind, head, data }: Frame): TerminalEvent | null {
  if (kind === "failure") throw errorFrom(head, 0);
  if (kind === "ping") return null;
  const event = head as TerminalEvent;
  return event.type === "output" ? { ...event, data } : event;
}

/** Messages of a socket that wait for their reader; with too many of them the socket is left. */
class Messages {
  readonly opened: Promise<boolean>;
  #waiting: Uint8Array[] = [];
  #bytes = 0;
  #isOver = false;
  #wake: () => void = () => undefined;

  constructor(readonly socket: WebSocket) {
    socket.binaryType = "arraybuffer";
    socket.onmessage = (message: MessageEvent<unknown>) => this.#take(message.data);
    this.opened = new Promise((resolve) => {
      socket.onopen = () => resolve(true);
      socket.onerror = () => resolve(false);
      socket.onclose = () => {
        resolve(false);
        this.#end();
      };
    });
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    for (;;) {
      const taken = this.#waiting;
      this.#waiting = [];
      for (const message of taken) {
        this.#bytes -= message.length;
        yield message;
      }
      if (this.#waiting.length === 0 && this.#isOver) return;
      if (this.#waiting.length === 0) await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  #take(data: unknown): void {
    if (this.#isOver || !(data instanceof ArrayBuffer)) return;
    const message = new Uint8Array(data);
    this.#waiting.push(message);
    this.#bytes += message.length;
    if (this.#bytes > MOST_WAITING_BYTES) {
      this.socket.close();
      this.#end();
    }
    this.#wake();
  }

  #end(): void {
    this.#isOver = true;
    this.#wake();
  }
}
