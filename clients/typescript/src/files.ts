/** Files of a sandbox. */

import { type Transport } from "./transport.js";
import { type FileChange, type FileInfo } from "./types.js";

type Content = string | Blob | Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>;

export class Files {
  constructor(
    readonly transport: Transport,
    readonly sandbox: string,
  ) {}

  get #path(): { sandbox: string } {
    return { sandbox: this.sandbox };
  }

  list(path: string, options: { recursive?: boolean; hidden?: boolean } = {}): Promise<FileInfo[]> {
    return this.transport.call("list_files", { path: this.#path, query: { path, ...options } });
  }

  stat(path: string): Promise<FileInfo> {
    return this.transport.call("stat_file", { path: this.#path, query: { path } });
  }

  /** The response with the content, or with its bytes from `start` to `end`. */
  open(path: string, range: { start?: number; end?: number } = {}, signal?: AbortSignal): Promise<Response> {
    return this.transport.request("read_file", { path: this.#path, query: { path, ...range }, signal }, "*/*");
  }

  async read(path: string): Promise<Uint8Array> {
    return new Uint8Array(await (await this.open(path)).arrayBuffer());
  }

  async readText(path: string): Promise<string> {
    return (await this.open(path)).text();
  }

  /** Replace the content, at once or not at all. */
  async write(path: string, content: Content, signal?: AbortSignal): Promise<void> {
    const body = typeof content === "string" ? new TextEncoder().encode(content) : content;
    await this.transport.call("write_file", { path: this.#path, query: { path }, body, signal });
  }

  /** Where `write` sends to, for who sends by other means. */
  writeTarget(path: string): { url: string; headers: Record<string, string> } {
    return this.transport.target("write_file", { path: this.#path, query: { path } });
  }

  mkdir(path: string, parents = true): Promise<void> {
    return this.transport.call("make_directory", { path: this.#path, body: { path, parents } });
  }

  rename(old: string, to: string): Promise<void> {
    return this.transport.call("rename_file", { path: this.#path, body: { old, new: to } });
  }

  remove(path: string): Promise<void> {
    return this.transport.call("remove_file", { path: this.#path, body: { path } });
  }

  removeTree(path: string): Promise<void> {
    return this.transport.call("remove_tree", { path: this.#path, body: { path } });
  }

  /** Files that differ from creation, or from a snapshot. */
  changes(since?: string): Promise<FileChange[]> {
    return this.transport.call("list_changes", { path: this.#path, query: since === undefined ? {} : { since } });
  }

  /** The differences as a patch. */
  async diff(path?: string, since?: string): Promise<string> {
    const query = { ...(path === undefined ? {} : { path }), ...(since === undefined ? {} : { since }) };
    return (await this.transport.call("diff_sandbox", { path: this.#path, query })).diff;
  }
}
