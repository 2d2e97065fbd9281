/** All sandboxes, live. */

import { useEffect, useRef, useState } from "preact/hooks";

import { CreateDialog } from "./create_dialog";
import { fleet, historyOf, keyOf, type Row } from "./fleet";
import { age, bytes } from "./format";
import { route, sandboxLink } from "./route";
import { LifeActions } from "./life_actions";
import { Sparkline } from "./sparkline";
import { VirtualList } from "./virtual_list";

const ROW_HEIGHT = 44;
/** A chart of less than this looks like none. */
const LEAST_CPUS = 0.25;
const STATUSES = ["all", "running", "paused", "stopped", "lost"];

export function SandboxList() {
  const [text, setText] = useState("");
  const [status, setStatus] = useState("all");
  const [isCreating, setCreating] = useState(false);
  const search = useSearchKey();
  const rows = [...fleet.value.values()].filter((row) => matches(row, text, status)).sort(newestFirst);
  return (
    <section class="page list-page" aria-label="Sandboxes">
      <div class="bar">
        <h1>Sandboxes</h1>
        <input
          ref={search}
          type="search"
          placeholder="Search id, label, image, owner  ( / )"
          aria-label="Search sandboxes"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <select aria-label="Status" value={status} onChange={(event) => setStatus(event.currentTarget.value)}>
          {STATUSES.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <span class="quiet count-text">
          {rows.length} of {fleet.value.size}
        </span>
        <button class="primary" data-action="create" onClick={() => setCreating(true)}>
          New sandbox
        </button>
      </div>
      {rows.length === 0 ? (
        <p class="empty">{fleet.value.size === 0 ? "There are no sandboxes yet." : "No sandbox matches."}</p>
      ) : (
        <>
          <Heads />
          <VirtualList items={rows} height={ROW_HEIGHT} label="List of sandboxes" render={(row) => <SandboxRow key={keyOf(row)} row={row} />} />
        </>
      )}
      {isCreating && <CreateDialog onClose={() => setCreating(false)} />}
    </section>
  );
}

function Heads() {
  return (
    <div class="row heads" aria-hidden="true">
      <span>Sandbox</span>
      <span>Image</span>
      <span>Age</span>
      <span>Memory</span>
      <span>CPU</span>
      <span>Network</span>
      <span />
    </div>
  );
}

function SandboxRow({ row }: { readonly row: Row }) {
  const { memory, cpus, network } = historyOf(keyOf(row));
  const traffic = (row.network_sent_bytes ?? 0) + (row.network_received_bytes ?? 0);
  return (
    <div class="row" data-sandbox={row.id} data-status={row.status}>
      <span class="name">
        <span class={`dot ${row.status}`} role="img" aria-label={row.status} title={row.status} />
        <a href={sandboxLink(row.id, row.owner)}>{row.id}</a>
        {row.owner !== null && <span class="tag owner">{row.owner}</span>}
        {Object.entries(row.labels).map(([name, value]) => (
          <span key={name} class="tag">
            {name}={value}
          </span>
        ))}
      </span>
      <span class="quiet cut">{row.image ?? "host"}</span>
      <span class="quiet">{age(row.created_at)}</span>
      <span class="measure">
        <Sparkline kind="memory" samples={memory} label={`Memory ${bytes(row.memory_bytes)}`} />
        <span>{bytes(row.memory_bytes)}</span>
      </span>
      <span class="measure">
        <Sparkline kind="cpus" samples={cpus} most={LEAST_CPUS} label={`CPU ${row.cpus ?? 0} cores`} />
        <span>{row.cpus === null ? "–" : row.cpus.toFixed(2)}</span>
      </span>
      <span class="measure">
        <Sparkline kind="network" samples={network} label={`Network ${bytes(traffic)}`} />
        <span>{bytes(traffic)}</span>
      </span>
      <LifeActions id={row.id} owner={row.owner} status={row.status} isShort />
    </div>
  );
}

function matches(row: Row, text: string, status: string): boolean {
  if (status !== "all" && row.status !== status) return false;
  const labels = Object.entries(row.labels).map(([name, value]) => `${name}=${value}`);
  const all = [row.id, row.owner ?? "", row.image ?? "", row.node ?? "", ...labels].join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}

function newestFirst(one: Row, other: Row): number {
  return one.created_at < other.created_at ? 1 : one.created_at > other.created_at ? -1 : one.id < other.id ? -1 : 1;
}

/** "/" leads to the search, as in many lists. */
function useSearchKey() {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const listen = (event: KeyboardEvent): void => {
      const isTyping = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (event.key !== "/" || isTyping || route.peek().page !== "sandboxes") return;
      event.preventDefault();
      input.current?.focus();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
  return input;
}
