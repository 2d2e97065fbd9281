/** Health of the server: what its sandboxes are and use together. */

import { fleet, type Row } from "./fleet";
import { bytes } from "./format";
import { useAsked } from "./live";
import { ownClient, session } from "./session";

const PAUSE = 5000;
const STATUSES = ["running", "paused", "stopped", "lost"];

export function ServerHealth() {
  const { value, problem } = useAsked(readHealth, [], PAUSE);
  const rows = [...fleet.value.values()];
  const facts: [string, string][] = [
    ["Answers", value === null ? "–" : value ? "yes" : "no"],
    ...STATUSES.map((status): [string, string] => [`Sandboxes ${status}`, String(rows.filter((row) => row.status === status).length)]),
    ["Memory in use", bytes(total(rows, (row) => row.memory_bytes))],
    ["Processors in use", total(rows, (row) => row.cpus).toFixed(2)],
    ["Processes", String(total(rows, (row) => row.processes))],
    ["Received", bytes(total(rows, (row) => row.network_received_bytes))],
    ["Sent", bytes(total(rows, (row) => row.network_sent_bytes))],
    ["Refused", String(total(rows, (row) => row.network_refused))],
  ];
  return (
    <section class="things" aria-label="Health">
      <h2>Health</h2>
      {problem !== "" && <p class="problem">{problem}</p>}
      <Facts facts={facts} />
      {session.value?.is_cluster === true && session.value.is_admin === false && (
        <>
          <h2>Sandboxes by node</h2>
          <Facts facts={byNode(rows)} />
        </>
      )}
    </section>
  );
}

function Facts({ facts }: { readonly facts: readonly [string, string][] }) {
  return (
    <dl class="facts">
      {facts.map(([name, said]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{said}</dd>
        </div>
      ))}
    </dl>
  );
}

function byNode(rows: readonly Row[]): [string, string][] {
  const counts = new Map<string, number>();
  for (const { node } of rows) counts.set(node ?? "this node", (counts.get(node ?? "this node") ?? 0) + 1);
  return [...counts].sort().map(([node, count]) => [node, String(count)]);
}

function total(rows: readonly Row[], of: (row: Row) => number | null): number {
  return rows.reduce((sum, row) => sum + (of(row) ?? 0), 0);
}

async function readHealth(): Promise<boolean> {
  const response = await ownClient().transport.request("health");
  return ((await response.json()) as { ok?: unknown }).ok === true;
}
