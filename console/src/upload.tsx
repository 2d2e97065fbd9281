/** Uploads and downloads, with how far they are. */

import { signal } from "@preact/signals";
import { type FileInfo, type Sandbox } from "cove-client";

import { bytes } from "./format";
import { attempt } from "./notice";

interface Transfer {
  readonly name: string;
  readonly done: number;
  readonly size: number;
}

const transfers = signal<ReadonlyMap<number, Transfer>>(new Map());
let count = 0;

/** Send a file; a browser tells how far it is only by this older interface. */
export async function upload(sandbox: Sandbox, path: string, file: File): Promise<void> {
  const number = ++count;
  const { url, headers } = sandbox.files.writeTarget(path);
  await attempt(
    () =>
      new Promise<void>((resolve, reject) => {
        const request = new XMLHttpRequest();
        request.open("PUT", url);
        for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
        request.upload.onprogress = ({ loaded }) => tell(number, { name: file.name, done: loaded, size: file.size });
        request.onload = () => (request.status < 300 ? resolve() : reject(new Error(problemOf(request))));
        request.onerror = () => reject(new Error(`${file.name} was not uploaded: the connection broke`));
        request.send(file);
      }),
    `${file.name} is uploaded`,
  );
  tell(number, null);
}

/** Save a file on the user's machine. */
export async function download(sandbox: Sandbox, file: FileInfo): Promise<void> {
  const number = ++count;
  const response = await sandbox.files.open(file.path);
  const pieces: Uint8Array<ArrayBuffer>[] = [];
  let done = 0;
  try {
    for await (const piece of response.body ?? []) {
      pieces.push(piece as Uint8Array<ArrayBuffer>);
      done += piece.length;
      tell(number, { name: file.name, done, size: file.size });
    }
  } finally {
    tell(number, null);
  }
  const address = URL.createObjectURL(new Blob(pieces, { type: "application/octet-stream" }));
  const link = Object.assign(document.createElement("a"), { href: address, download: file.name });
  link.click();
  URL.revokeObjectURL(address);
}

export function Uploads() {
  return (
    <>
      {[...transfers.value].map(([number, { name, done, size }]) => (
        <label key={number} class="transfer">
          {name} {bytes(done)}
          <progress max={Math.max(size, 1)} value={done} />
        </label>
      ))}
    </>
  );
}

function tell(number: number, transfer: Transfer | null): void {
  const changed = new Map(transfers.peek());
  if (transfer === null) changed.delete(number);
  else changed.set(number, transfer);
  transfers.value = changed;
}

function problemOf(request: XMLHttpRequest): string {
  try {
    return String((JSON.parse(request.responseText) as { error?: unknown }).error);
  } catch {
    return `the server answered with status ${request.status}`;
  }
}
