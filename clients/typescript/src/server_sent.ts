/** Server-sent events, for streams that have no frames. */

export interface ServerSent {
  readonly event: string;
  readonly data: string;
  readonly id: string | null;
}

/** Takes bytes in any pieces and gives whole events; comments are passed over. */
export class ServerSentReader {
  #decoder = new TextDecoder();
  #rest = "";

  *feed(piece: Uint8Array): Generator<ServerSent> {
    const blocks = (this.#rest + this.#decoder.decode(piece, { stream: true })).split("\n\n");
    this.#rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = parse(block);
      if (event !== null) yield event;
    }
  }
}

function parse(block: string): ServerSent | null {
  const fields = { event: "message", id: null as string | null };
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const [, name, value] = /^(event|data|id): ?(.*)$/.exec(line) ?? [];
    if (name === "data") data.push(value ?? "");
    else if (name === "event") fields.event = value ?? "";
    else if (name === "id") fields.id = value ?? "";
  }
  return data.length > 0 ? { ...fields, data: data.join("\n") } : null;
}
