/** Health of the server, from what it tells monitoring. */

import { useAsked } from "./live";
import { ownClient, session } from "./session";

const PAUSE = 5000;
const SHOWN = /^cove_[a-z_]+(\{[^}]*\})? /;

export function ServerHealth() {
  const { value, problem } = useAsked(readMetrics, [], PAUSE);
  const health = useAsked(readHealth, [], PAUSE).value;
  return (
    <section class="things" aria-label="Health">
      <h2>Health</h2>
      {problem !== "" && <p class="problem">{problem}</p>}
      <dl class="facts">
        {[...Object.entries(health ?? {}), ...(value ?? [])].map(([name, said]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{said}</dd>
          </div>
        ))}
        {session.value?.is_cluster === true && (
          <div>
            <dt>cluster</dt>
            <dd>This server is a node; the list of sandboxes names the node of each.</dd>
          </div>
        )}
      </dl>
    </section>
  );
}

async function readHealth(): Promise<Record<string, string>> {
  const response = await ownClient().transport.request("health");
  const said = (await response.json()) as Record<string, unknown>;
  return Object.fromEntries(Object.entries(said).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)]));
}

/** Gauges and counters without histograms. */
async function readMetrics(): Promise<[string, string][]> {
  const text = await (await ownClient().transport.request("metrics", {}, "text/plain")).text();
  const lines = text.split("\n").filter((line) => SHOWN.test(line) && !/_(bucket|sum|count)[{ ]/.test(line));
  return lines.slice(0, 60).map((line) => {
    const at = line.lastIndexOf(" ");
    return [line.slice(0, at).replace(/^cove_/, "").replaceAll("_", " "), line.slice(at + 1)];
  });
}
