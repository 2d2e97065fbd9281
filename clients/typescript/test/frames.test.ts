/** Frames and server-sent events, in pieces of every size. */

import assert from "node:assert/strict";
import { it } from "node:test";

import { FrameReader } from "../src/frames.js";
import { ServerSentReader } from "../src/server_sent.js";

function frame(kind: number, head: string, data: string): Uint8Array {
  const view = Buffer.alloc(9);
  view.writeUInt8(kind, 0);
  view.writeUInt32BE(Buffer.byteLength(head), 1);
  view.writeUInt32BE(Buffer.byteLength(data), 5);
  return Buffer.concat([view, Buffer.from(head), Buffer.from(data)]);
}

function pieces(whole: Uint8Array, size: number): Uint8Array[] {
  return Array.from({ length: Math.ceil(whole.length / size) }, (_, index) => whole.subarray(index * size, (index + 1) * size));
}

it("reads frames that come in any pieces", () => {
  const whole = Buffer.concat([frame(1, '{"a":"é"}', "data"), frame(3, "", ""), frame(1, '{"b":2}', ""), frame(2, '{"c":3}', "x")]);
  for (let size = 1; size <= whole.length; size++) {
    const reader = new FrameReader();
    const seen = pieces(whole, size).flatMap((piece) => [...reader.feed(piece)].map((each) => [each.kind, each.head, Buffer.from(each.data).toString()]));
    assert.deepEqual(seen, [["event", { a: "é" }, "data"], ["ping", null, ""], ["event", { b: 2 }, ""], ["failure", { c: 3 }, "x"]]);
  }
});

it("refuses a frame that no server sends", () => {
  assert.throws(() => [...new FrameReader().feed(Uint8Array.of(1, 255, 255, 255, 255, 0, 0, 0, 0))], { code: "INTERNAL" });
});

it("reads server-sent events that come in any pieces", () => {
  const whole = Buffer.from(': ping\n\nid: 7\nevent: changes\ndata: {"é":1}\n\ndata: a\ndata: b\n\n');
  for (let size = 1; size <= whole.length; size++) {
    const reader = new ServerSentReader();
    assert.deepEqual(pieces(whole, size).flatMap((piece) => [...reader.feed(piece)]), [
      { event: "changes", data: '{"é":1}', id: "7" },
      { event: "message", data: "a\nb", id: null },
    ]);
  }
});
