/** HTTP and WebSockets to a server: operations by name, streams of events that reconnect. */

import { Backoff } from "./backoff.js";
import { ConnectionLost, CoveError, errorFrom } from "./errors.js";
import { FRAMES, FrameReader } from "./frames.js";
import { ROUTES } from "./routes.js";
import { ServerSentReader } from "./server_sent.js";
import { type Answer, type Body, type Ids, type OperationName, type Query } from "./types.js";

export interface Options {
  /** The server's address, such as `http://127.0.0.1:8787`; in a browser the page's own by default. */
  readonly url?: string;
  readonly apiKey?: string;
  /** Headers of every request. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Added to the query of WebSockets, which have no headers in browsers. */
  readonly socketQuery?: Readonly<Record<string, string>>;
  /** Seconds that streams and terminals wait for a server that is away: 30 by default. */
  readonly patience?: number;
  /** Told of every error that a server answers. */
  readonly onError?: (error: CoveError) => void;
}

export interface Asked<Name extends OperationName> {
  readonly path?: Ids<Name>;
  readonly query?: Query<Name>;
  readonly body?: Body<Name> | Blob | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>;
  readonly signal?: AbortSignal | undefined;
}

/** One event of a stream, with the data that belong to it. */
export interface StreamEvent {
  readonly name: string;
  readonly fields: unknown;
  readonly data: Uint8Array;
}

type Fields = Readonly<Record<string, unknown>>;

/** Node's constructor takes headers; a browser's takes none, and sends the cookie. */
type SocketMaker = new (url: string, options?: { headers: Record<string, string> }) => WebSocket;

export class Transport {
  readonly patience: number;
  readonly #url: string;
  readonly #headers: Record<string, string>;

  constructor(readonly options: Options = {}) {
    this.#url = (options.url ?? globalThis.location.origin).replace(/\/+$/, "");
    this.#headers = { ...options.headers };
    if (options.apiKey !== undefined) this.#headers["authorization"] = `Bearer ${options.apiKey}`;
    this.patience = options.patience ?? 30;
  }

  /** Call an operation that answers a value. */
  async call<Name extends OperationName>(name: Name, asked: Asked<Name> = {}): Promise<Answer<Name>> {
    const response = await this.request(name, asked);
    const text = await lostUnless(response.text(), asked.signal);
    return (text === "" ? undefined : JSON.parse(text)) as Answer<Name>;
  }

  /** Call an operation and give the response, whose body is not read; an error of the server is thrown. */
  async request<Name extends OperationName>(name: Name, asked: Asked<Name> = {}, accept = "application/json"): Promise<Response> {
    const { url } = this.target(name, asked);
    return this.fetch(url, { method: ROUTES[name][0], accept, body: asked.body, signal: asked.signal });
  }

  /** The address of an operation, and the headers that it needs. */
  target<Name extends OperationName>(name: Name, asked: Asked<Name>): { url: string; headers: Record<string, string> } {
    const url = this.#url + fill(ROUTES[name][1], asked.path ?? {}) + queryOf(asked.query ?? {});
    return { url, headers: { ...this.#headers } };
  }

  /** Events of an operation. With a cursor in them, a broken stream goes on where it broke. */
  async *events<Name extends OperationName>(name: Name, asked: Asked<Name> = {}): AsyncGenerator<StreamEvent> {
    const open = (since: string | null): Promise<Response> =>
      this.request(name, since === null ? asked : { ...asked, query: { ...asked.query, since } as unknown as Query<Name> }, FRAMES);
    yield* this.resume(open, asked.signal);
  }

  /** Events of an operation that does something: it is asked for once. */
  async *once<Name extends OperationName>(name: Name, asked: Asked<Name>): AsyncGenerator<StreamEvent> {
    yield* read(await this.request(name, asked, FRAMES), asked.signal);
  }

  /** Read what `open` gives, and open again at the last cursor when the connection breaks. */
  async *resume(open: (since: string | null) => Promise<Response>, signal?: AbortSignal): AsyncGenerator<StreamEvent> {
    const backoff = new Backoff(this.patience);
    let since: string | null = null;
    for (let isStarted = false; ; ) {
      try {
        const response = await open(since);
        for await (const event of read(response, signal)) {
          backoff.renew();
          isStarted = true;
          since = cursorOf(event.fields) ?? since;
          yield event;
        }
        return;
      } catch (error) {
        if (!(error instanceof ConnectionLost) || (isStarted && since === null)) throw error;
        await backoff.pause(error, signal);
      }
    }
  }

  /** Events of a path that has no cursors: asked for once. */
  async *eventsAt(path: string, signal?: AbortSignal): AsyncGenerator<StreamEvent> {
    yield* read(await this.fetch(path, { method: "GET", accept: "text/event-stream", signal }), signal);
  }

  /** Send a request to an absolute or own URL. */
  async fetch(target: string, { method, accept, body, signal }: Sent): Promise<Response> {
    const isContent = body instanceof Blob || body instanceof Uint8Array || body instanceof ReadableStream;
    const headers: Record<string, string> = { ...this.#headers, accept };
    if (body !== undefined) headers["content-type"] = isContent ? "application/octet-stream" : "application/json";
    const content = body === undefined ? null : isContent ? (body as BodyInit) : JSON.stringify(body);
    const duplex = body instanceof ReadableStream ? { duplex: "half" } : {};
    const url = target.startsWith("/") ? this.#url + target : target;
    const init = { method, headers, body: content, signal: signal ?? null, ...duplex };
    const response = await lostUnless(fetch(url, init), signal);
    if (response.ok) return response;
    throw this.#failed(await bodyOf(response), response.status);
  }

  /** Open a WebSocket of an operation. */
  socket<Name extends OperationName>(name: Name, path: Ids<Name>, query: Query<Name>): WebSocket {
    const [, template] = ROUTES[name];
    const target = fill(template, path as object) + queryOf({ ...query, ...this.options.socketQuery });
    const Socket = WebSocket as unknown as SocketMaker;
    const url = this.#url.replace(/^http/, "ws") + target;
    const headers = this.#headers;
    return "authorization" in headers ? new Socket(url, { headers }) : new Socket(url);
  }

  #failed(body: unknown, status: number): CoveError {
    const error = errorFrom(body, status);
    this.options.onError?.(error);
    return error;
  }
}

export interface Sent {
  readonly method: string;
  readonly accept: string;
  readonly body?: unknown;
  readonly signal?: AbortSignal | undefined;
}

async function* read(response: Response, signal?: AbortSignal): AsyncGenerator<StreamEvent> {
  const isFrames = response.headers.get("content-type")?.startsWith(FRAMES) ?? false;
  const parse = isFrames ? framesParser() : serverSentParser();
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  try {
    for (;;) {
      const { done, value } = await lostUnless(reader.read(), signal);
      if (done) return;
      yield* parse(value);
    }
  } finally {
    reader.cancel().catch(() => undefined); // of a connection that broke: nothing is left to end
  }
}

type Parse = (piece: Uint8Array) => Generator<StreamEvent>;

function framesParser(): Parse {
  const reader = new FrameReader();
  return function* (piece) {
    for (const { kind, head, data } of reader.feed(piece)) {
      if (kind === "failure") throw errorFrom(head, 0);
      if (kind === "event") yield { name: String((head as Fields)["type"] ?? (head as Fields)["kind"] ?? ""), fields: head, data };
    }
  };
}

function serverSentParser(): Parse {
  const reader = new ServerSentReader();
  return function* (piece) {
    for (const { event, data } of reader.feed(piece)) {
      const fields = JSON.parse(data) as unknown;
      if (event === "error") throw errorFrom(fields, 0);
      yield { name: event, fields, data: new Uint8Array() };
    }
  };
}

function cursorOf(fields: unknown): string | null {
  const cursor = (fields as Fields)["cursor"];
  return typeof cursor === "string" ? cursor : null;
}

/** Give what is awaited, or the error that the connection is lost; an abort of the caller is thrown as it is. */
async function lostUnless<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (signal?.aborted) throw signal.reason;
    throw new ConnectionLost(`the connection to the server broke: ${error instanceof Error ? error.message : String(error)}`);
  }
}

async function bodyOf(response: Response): Promise<unknown> {
  try {
    return (await response.json()) as unknown;
  } catch {
    return null; // of a proxy that speaks no JSON
  }
}

function fill(template: string, ids: object): string {
  return template.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String((ids as Fields)[name])));
}

function queryOf(fields: object): string {
  const pairs = Object.entries(fields as Fields).filter(([, value]) => value !== undefined && value !== null);
  return pairs.length === 0 ? "" : "?" + new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
}
