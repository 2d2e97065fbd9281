/** A proxy that cuts connections after so many bytes of an answer. */

import { type AddressInfo, connect, createServer, type Socket } from "node:net";

export interface CuttingProxy {
  readonly url: string;
  readonly cuts: () => number;
  close(): void;
}

/** `pieces` are the bytes after which the first, second, ... connections are cut; later ones are not. */
export async function cuttingProxy(target: string, pieces: number[]): Promise<CuttingProxy> {
  const { hostname, port } = new URL(target);
  const open = new Set<Socket>();
  let cuts = 0;
  const server = createServer((near) => {
    const far = connect(Number(port), hostname);
    let left = pieces.shift() ?? Infinity;
    for (const socket of [near, far]) {
      open.add(socket);
      socket.on("error", () => undefined);
      socket.on("close", () => [near, far].forEach((each) => each.destroy()));
    }
    near.pipe(far);
    far.on("data", (data) => {
      near.write(data.subarray(0, left));
      left -= data.length;
      if (left > 0) return;
      cuts += 1;
      far.destroy();
      near.destroySoon();
    });
    far.on("end", () => near.end());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    cuts: () => cuts,
    close: () => {
      open.forEach((socket) => socket.destroy());
      server.close();
    },
  };
}
