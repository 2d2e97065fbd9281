/** What was done to a sandbox and in it, as a time line. */

import { type JournalEvent } from "cove-client";
import { useState } from "preact/hooks";

import { decodedText, seconds, time } from "./format";
import { useStream } from "./live";
import { type TabProps } from "./sandbox_page";
import { VirtualList } from "./virtual_list";

const MOST_EVENTS = 5000;
const ROW_HEIGHT = 30;
const GROUPS: Readonly<Record<string, readonly string[]>> = {
  life: ["created", "destroyed", "started", "stopped", "paused", "resumed", "restored", "reset", "forked", "snapshot", "settings", "limit", "lost", "warning", "gap"],
  commands: ["exec", "command", "process_started", "process_ended", "code"],
  terminals: ["terminal_started", "terminal_resized", "terminal_ended"],
  files: ["files"],
  network: ["network", "port"],
  output: ["output"],
};

export function JournalTab({ sandbox }: TabProps) {
  const { events, problem } = useStream((signal) => sandbox.journal(true, signal), [sandbox], MOST_EVENTS);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set(["output"]));
  const [text, setText] = useState("");
  const shown = events.filter((event) => isShown(event, hidden, text.toLowerCase()));
  const toggle = (group: string): void => {
    const changed = new Set(hidden);
    if (!changed.delete(group)) changed.add(group);
    setHidden(changed);
  };
  return (
    <div class="fill">
      <div class="subtabs" role="group" aria-label="Kinds of events">
        {Object.keys(GROUPS).map((group) => (
          <button key={group} aria-pressed={!hidden.has(group)} onClick={() => toggle(group)}>
            {group}
          </button>
        ))}
        <input type="search" placeholder="Filter" aria-label="Filter the journal" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <span class="quiet">
          {shown.length} of {events.length}
        </span>
      </div>
      {problem !== "" && <p class="problem">{problem}</p>}
      <VirtualList items={shown} height={ROW_HEIGHT} label="Journal" followsEnd render={(event) => <Line key={event.cursor} event={event} />} />
    </div>
  );
}

function Line({ event }: { readonly event: JournalEvent }) {
  const isFailure = event.error != null || event.allowed === false || (event.exit_code ?? 0) !== 0;
  return (
    <div class={isFailure ? "line bad" : "line"} data-kind={event.kind}>
      <time dateTime={event.at}>{time(event.at)}</time>
      <span class="kind">
        <span class="tag">{event.kind.replaceAll("_", " ")}</span>
      </span>
      <code class="cut grow" title={describe(event)}>
        {event.subject != null && <span class="quiet subject">{event.subject}</span>}
        {detail(event)}
      </code>
      <span class="quiet">{ending(event)}</span>
      <span class="quiet who">{event.key ?? ""}</span>
    </div>
  );
}

function describe(event: JournalEvent): string {
  return [event.subject, detail(event)].filter((word) => word != null).join("  ");
}

function detail(event: JournalEvent): string {
  const port = event.port == null ? "" : `:${event.port}`;
  const address = `${event.host ?? ""}${port}`;
  const size = event.cols == null ? null : `${event.cols}×${event.rows}`;
  const isSaid = address !== "" && event.reason?.includes(address) === true;
  const said = [event.operation, event.method, isSaid ? null : address, size, event.text, event.path, event.target, event.reason, event.error, event.data == null ? null : decodedText(event.data)];
  const found = said.filter((word) => word != null && word !== "");
  return found.join("  ").replaceAll("\n", " ⏎ ").slice(0, 500);
}

function ending(event: JournalEvent): string {
  const code = event.exit_code == null ? event.outcome : `exit ${event.exit_code}`;
  return [code, event.duration == null ? null : seconds(event.duration)].filter((word) => word != null).join(", ");
}

function isShown(event: JournalEvent, hidden: ReadonlySet<string>, text: string): boolean {
  const group = Object.keys(GROUPS).find((name) => GROUPS[name]?.includes(event.kind));
  if (group !== undefined && hidden.has(group)) return false;
  return text === "" || `${event.kind} ${describe(event)} ${event.key ?? ""}`.toLowerCase().includes(text);
}
