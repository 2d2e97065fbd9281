/** The live list of sandboxes, with what each has used lately. */

import { signal } from "@preact/signals";
import { Backoff, ConnectionLost, CoveError, type SandboxStatus } from "cove-client";

import { ownClient } from "./session";

export interface Row {
  readonly id: string;
  readonly owner: string | null;
  readonly status: SandboxStatus;
  readonly labels: Readonly<Record<string, string>>;
  readonly created_at: string;
  readonly image: string | null;
  readonly node: string | null;
  readonly ends_at: string | null;
  readonly memory_bytes: number | null;
  readonly memory_limit: number | null;
  readonly cpus: number | null;
  readonly cpu_limit: number | null;
  readonly processes: number | null;
  readonly network_sent_bytes: number | null;
  readonly network_received_bytes: number | null;
  readonly network_refused: number | null;
}

/** The last samples of one sandbox, oldest first. */
export interface History {
  readonly memory: number[];
  readonly cpus: number[];
  readonly network: number[];
}

interface Snapshot {
  readonly sandboxes: readonly Row[];
}

interface Changes {
  readonly changed: readonly Row[];
  readonly removed: readonly { owner: string | null; id: string }[];
}

const SAMPLES = 60;
const histories = new Map<string, History>();
const rows = new Map<string, Row>();

/** Rows by owner and id; a new map after every change. */
export const fleet = signal<ReadonlyMap<string, Row>>(new Map());
export const isConnected = signal(false);

export function keyOf({ owner, id }: { owner: string | null; id: string }): string {
  return `${owner ?? ""}/${id}`;
}

export function historyOf(key: string): History {
  return histories.get(key) ?? { memory: [], cpus: [], network: [] };
}

/** Follow the server's events until the signal aborts. */
export async function followFleet(ending: AbortSignal): Promise<void> {
  const backoff = new Backoff(Infinity);
  while (!ending.aborted) {
    let error = new ConnectionLost("the stream of sandboxes has ended");
    try {
      for await (const { name, fields } of ownClient().transport.eventsAt("/v1/console/events", ending)) {
        backoff.renew();
        isConnected.value = true;
        if (name === "snapshot") begin(fields as Snapshot);
        else if (name === "changes") change(fields as Changes);
      }
    } catch (failure) {
      if (ending.aborted || (failure instanceof CoveError && failure.status === 401)) return;
      if (failure instanceof ConnectionLost) error = failure;
    }
    isConnected.value = false;
    await backoff.pause(error, ending).catch(() => undefined);
  }
}

function begin({ sandboxes }: Snapshot): void {
  rows.clear();
  for (const row of sandboxes) rows.set(keyOf(row), row);
  publish();
}

function change({ changed, removed }: Changes): void {
  const before = new Map(changed.map((row) => [keyOf(row), rows.get(keyOf(row))]));
  for (const gone of removed) {
    rows.delete(keyOf(gone));
    histories.delete(keyOf(gone));
  }
  for (const row of changed) rows.set(keyOf(row), row);
  for (const [key, row] of rows) sample(key, row, before.get(key));
  publish();
}

function sample(key: string, row: Row, before: Row | undefined): void {
  const history = histories.get(key) ?? { memory: [], cpus: [], network: [] };
  histories.set(key, history);
  keep(history.memory, row.memory_bytes ?? 0);
  keep(history.cpus, before === undefined && row.status !== "running" ? 0 : (row.cpus ?? 0));
  keep(history.network, before === undefined ? 0 : Math.max(0, traffic(row) - traffic(before)));
}

function traffic(row: Row): number {
  return (row.network_sent_bytes ?? 0) + (row.network_received_bytes ?? 0);
}

function keep(samples: number[], value: number): void {
  samples.push(value);
  if (samples.length > SAMPLES) samples.shift();
}

function publish(): void {
  fleet.value = new Map(rows);
}
