/** A server: its sandboxes, snapshots, images, volumes and keys. */

import { Sandbox } from "./sandbox.js";
import { type Options, Transport } from "./transport.js";
import { type ApiKeyInfo, type Body, type ImageInfo, type SandboxInfo, type SandboxSpec, type SnapshotInfo, type VolumeInfo } from "./types.js";

export class Cove {
  readonly transport: Transport;

  constructor(options: Options = {}) {
    this.transport = new Transport(options);
  }

  /** Make a sandbox; without an id the server chooses one. */
  async create(options: { id?: string; existOk?: boolean; spec?: SandboxSpec } = {}): Promise<Sandbox> {
    const { id, existOk, spec } = options;
    const body = { spec: spec ?? {}, ...(id === undefined ? {} : { id }), ...(existOk === undefined ? {} : { exist_ok: existOk }) };
    const made = await this.transport.call("create_sandbox", { body });
    return this.sandbox(made.id);
  }

  /** The handle of a sandbox; nothing is asked. */
  sandbox(id: string): Sandbox {
    return new Sandbox(this.transport, id);
  }

  list(): Promise<SandboxInfo[]> {
    return this.transport.call("list_sandboxes");
  }

  snapshots(): Promise<SnapshotInfo[]> {
    return this.transport.call("list_snapshots");
  }

  images(): Promise<ImageInfo[]> {
    return this.transport.call("list_images");
  }

  volumes(): Promise<VolumeInfo[]> {
    return this.transport.call("list_volumes");
  }

  /** All keys; for admins. */
  keys(): Promise<ApiKeyInfo[]> {
    return this.transport.call("list_keys");
  }

  /** Make a key, which is told this once. */
  async createKey(options: Body<"create_key">): Promise<{ key: string; info: ApiKeyInfo }> {
    return this.transport.call("create_key", { body: options });
  }
}
