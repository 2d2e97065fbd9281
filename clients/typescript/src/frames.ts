/**
 * Frames of event streams: one byte for the kind, two lengths (32 bits, big-endian), a head as JSON, data as they are.
 */

import { CoveError } from "./errors.js";

export const FRAMES = "application/vnd.cove.frames";

const HEAD_BYTES = 9;
const MOST_FRAME_BYTES = 256 << 20;
const KINDS = { 1: "event", 2: "failure", 3: "ping" } as const;

export interface Frame {
  readonly kind: "event" | "failure" | "ping";
  readonly head: unknown;
  readonly data: Uint8Array;
}

/** Takes bytes in any pieces and gives whole frames. Each byte is copied once at most. */
export class FrameReader {
  #pieces: Uint8Array[] = [];
  #size = 0;

  *feed(piece: Uint8Array): Generator<Frame> {
    this.#pieces.push(piece);
    this.#size += piece.length;
    for (let size = this.#frameSize(); size !== null && this.#size >= size; size = this.#frameSize()) {
      const frame = decode(this.#take(size));
      if (frame !== null) yield frame;
    }
  }

  #frameSize(): number | null {
    if (this.#size < HEAD_BYTES) return null;
    if ((this.#pieces[0]?.length ?? 0) < HEAD_BYTES) this.#pieces = [this.#joined()];
    const view = viewOf(this.#pieces[0] as Uint8Array);
    const size = HEAD_BYTES + view.getUint32(1) + view.getUint32(5);
    if (size > MOST_FRAME_BYTES) throw new CoveError(`the server sent a frame of ${size} bytes`, "INTERNAL");
    return size;
  }

  #take(size: number): Uint8Array {
    const first = this.#pieces[0] as Uint8Array;
    const whole = first.length >= size ? first : this.#joined();
    const rest = whole.subarray(size);
    const others = first.length >= size ? this.#pieces.slice(1) : [];
    this.#pieces = rest.length > 0 ? [rest, ...others] : others;
    this.#size -= size;
    return whole.subarray(0, size);
  }

  #joined(): Uint8Array {
    const whole = new Uint8Array(this.#size);
    let at = 0;
    for (const piece of this.#pieces) {
      whole.set(piece, at);
      at += piece.length;
    }
    return whole;
  }
}

function decode(bytes: Uint8Array): Frame | null {
  const view = viewOf(bytes);
  const kind = KINDS[view.getUint8(0) as keyof typeof KINDS];
  if (kind === undefined) return null;
  const end = HEAD_BYTES + view.getUint32(1);
  const text = new TextDecoder().decode(bytes.subarray(HEAD_BYTES, end));
  return { kind, head: text === "" ? null : (JSON.parse(text) as unknown), data: bytes.subarray(end) };
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
