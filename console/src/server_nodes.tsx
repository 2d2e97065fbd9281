/** The machine and the warm pool of a server, or of each node of a cluster; for admins. */

import { bytes, moment } from "./format";
import { useAsked } from "./live";
import { Meter } from "./meter";
import { ownClient, session } from "./session";

const PAUSE = 5000;

interface WarmKind {
  readonly image: string | null;
  readonly wanted: number;
  readonly waiting: number;
}

interface Facts {
  readonly version: string;
  readonly sandboxes: number;
  readonly max_sandboxes: number | null;
  readonly machine: {
    readonly cpus: number;
    readonly load: number;
    readonly memory_bytes: number;
    readonly memory_available_bytes: number;
    readonly disk_bytes: number;
    readonly disk_free_bytes: number;
  };
  readonly warm: readonly WarmKind[];
  readonly warm_hits: number;
  readonly warm_misses: number;
}

interface Node {
  readonly name: string | null;
  readonly is_here: boolean;
  readonly state: "up" | "restarting" | "down";
  readonly since: string | null;
  readonly is_draining: boolean;
  readonly free: number | null;
  readonly problem: string;
  readonly facts: Facts | null;
}

export function ServerNodes() {
  const { value, problem } = useAsked(readNodes, [], PAUSE);
  const isCluster = session.value?.is_cluster === true;
  return (
    <section class="things" aria-label={isCluster ? "Nodes" : "Machine"}>
      <h2>{isCluster ? "Nodes" : "Machine"}</h2>
      {problem !== "" && <p class="problem">{problem}</p>}
      <div class="nodes">
        {value?.map((node) => (
          <NodeCard key={node.name} node={node} />
        ))}
      </div>
    </section>
  );
}

function NodeCard({ node }: { readonly node: Node }) {
  const { name, state, since, facts, problem, free } = node;
  return (
    <article class="node" data-node={name ?? ""} data-state={state}>
      {name !== null && (
        <h3>
          <span class={`dot ${state}`} aria-hidden="true" /> {name} <span class="tag">{state}</span>
          {node.is_here && <span class="tag">this node</span>}
          {node.is_draining && <span class="tag refused">draining</span>}
        </h3>
      )}
      {name !== null && since !== null && <p class="quiet">since {moment(since)}</p>}
      {problem !== "" && <p class="problem">{problem}</p>}
      {facts === null ? <p class="quiet">It does not answer.</p> : <Machine facts={facts} free={free} />}
    </article>
  );
}

function Machine({ facts, free }: { readonly facts: Facts; readonly free: number | null }) {
  const { machine, sandboxes, warm, warm_hits: hits, warm_misses: misses } = facts;
  const memory = machine.memory_bytes - machine.memory_available_bytes;
  const disk = machine.disk_bytes - machine.disk_free_bytes;
  return (
    <div class="meters">
      <Meter label="Sandboxes" value={sandboxes} most={free === null ? null : sandboxes + Math.max(free, 0)} said={free === null ? `${sandboxes}` : `${sandboxes}, room for ${Math.max(free, 0)}`} />
      <Meter label="Load" value={machine.load} most={machine.cpus} said={`${machine.load.toFixed(1)} on ${machine.cpus} processors`} />
      <Meter label="Memory" value={memory} most={machine.memory_bytes} said={`${bytes(memory)} of ${bytes(machine.memory_bytes)}`} />
      <Meter label="Disk" value={disk} most={machine.disk_bytes} said={`${bytes(machine.disk_free_bytes)} free of ${bytes(machine.disk_bytes)}`} />
      {warm.map(({ image, wanted, waiting }) => (
        <Meter key={image} label={image === null ? "Warm pool" : `Warm pool, ${image}`} value={waiting} most={wanted} said={`${waiting} of ${wanted} wait`} isGoodWhenFull />
      ))}
      {warm.length === 0 ? (
        <p class="quiet">
          No sandbox is kept warm: start the server with <code>--warm N</code>.
        </p>
      ) : (
        <p class="quiet">
          {hits} of {hits + misses} creations found a warm sandbox.
        </p>
      )}
    </div>
  );
}

async function readNodes(): Promise<readonly Node[]> {
  const response = await ownClient().transport.fetch("/v1/console/server", { method: "GET", accept: "application/json" });
  return ((await response.json()) as { nodes: readonly Node[] }).nodes;
}
