/** One sandbox, with a tab for each thing that is in it. */

import { type Sandbox } from "cove-client";
import { type FunctionComponent } from "preact";
import { useMemo } from "preact/hooks";

import { CodeTab } from "./code_tab";
import { FilesTab } from "./files_tab";
import { fleet, keyOf } from "./fleet";
import { age } from "./format";
import { JournalTab } from "./journal_tab";
import { LifeActions } from "./life_actions";
import { NetworkTab } from "./network_tab";
import { PortsTab } from "./ports_tab";
import { ProcessesTab } from "./processes_tab";
import { route, sandboxLink } from "./route";
import { clientOf } from "./session";
import { SessionsTab } from "./sessions_tab";
import { TabBar } from "./tabs";
import { TerminalTab } from "./terminal_tab";
import { UsageTab } from "./usage_tab";

export interface TabProps {
  readonly sandbox: Sandbox;
  readonly owner: string | null;
}

const TABS: readonly [id: string, title: string, component: FunctionComponent<TabProps>, needsRunning: boolean][] = [
  ["terminal", "Terminal", TerminalTab, true],
  ["processes", "Processes", ProcessesTab, true],
  ["sessions", "Sessions", SessionsTab, true],
  ["code", "Code", CodeTab, true],
  ["files", "Files", FilesTab, true],
  ["ports", "Ports", PortsTab, true],
  ["journal", "Journal", JournalTab, false],
  ["usage", "Limits & use", UsageTab, false],
  ["network", "Network", NetworkTab, true],
];

export function SandboxPage({ id, owner }: { readonly id: string; readonly owner: string | null }) {
  const sandbox = useMemo(() => clientOf(owner).sandbox(id), [id, owner]);
  const row = [...fleet.value.values()].find((each) => each.id === id && (owner === null || each.owner === owner));
  const [current, , Tab, needsRunning] = TABS.find(([name]) => name === route.value.tab) ?? (TABS[0] as (typeof TABS)[number]);
  const tabs = TABS.map(([name, title]) => ({ id: name, title, link: sandboxLink(id, owner, name) }));
  const status = row?.status;
  return (
    <section class="page" aria-label={`Sandbox ${id}`}>
      <div class="bar">
        <h1>
          <span class={`dot ${status ?? ""}`} role="img" aria-label={status ?? "unknown"} /> {id}
        </h1>
        <span class="quiet">
          {status ?? "not in the list"}
          {row !== undefined && `, ${row.image === null || row.image === "" ? "this machine's system" : row.image}, ${age(row.created_at)} old`}
        </span>
        {row !== undefined && <LifeActions id={id} owner={owner} status={row.status} key={keyOf(row)} />}
      </div>
      <TabBar label="Parts of the sandbox" tabs={tabs} current={current} />
      <div class="panel" id="tab-panel" role="tabpanel" tabIndex={0} aria-labelledby={`tab-${current}`}>
        {needsRunning && status !== undefined && status !== "running" ? (
          <p class="empty">The sandbox is {status}. Start it to look inside.</p>
        ) : (
          <Tab sandbox={sandbox} owner={owner} />
        )}
      </div>
    </section>
  );
}
