/** What the network policy allowed and refused, and a way to allow it. */

import { type NetworkEvent, type NetworkPolicy } from "cove-client";

import { bytes, time } from "./format";
import { useAsked, useStream } from "./live";
import { attempt } from "./notice";
import { type TabProps } from "./sandbox_page";
import { VirtualList } from "./virtual_list";

const MOST_EVENTS = 2000;
const ROW_HEIGHT = 34;

export function NetworkTab({ sandbox }: TabProps) {
  const { value: info, refresh } = useAsked(() => sandbox.info(), [sandbox]);
  const policy = info?.spec.network;
  const { events, problem } = useStream((signal) => sandbox.networkLog(true, signal), [sandbox], MOST_EVENTS);
  const allow = (host: string): Promise<boolean> =>
    attempt(async () => {
      const { network } = (await sandbox.info()).spec;
      await sandbox.setNetwork(withDomain(network, host));
      refresh();
    }, `${host} is allowed`);
  return (
    <div class="fill">
      <p class="quiet">
        Policy: {typeof policy === "string" ? policy : describe(policy)}
        {policy === "none" && ". Nothing is logged without a policy; give the sandbox one when you make it."}
      </p>
      {problem !== "" && policy !== "none" && <p class="problem">{problem}</p>}
      {events.length === 0 ? (
        <p class="empty">Nothing has asked for the network.</p>
      ) : (
        <VirtualList
          items={events}
          height={ROW_HEIGHT}
          label="Network log"
          followsEnd
          render={(event) => <Line key={event.cursor} event={event} isAllowed={isListed(policy, event.host)} onAllow={() => allow(event.host)} />}
        />
      )}
    </div>
  );
}

type Policy = "none" | "internet" | "host" | NetworkPolicy;

interface LineProps {
  readonly event: NetworkEvent;
  readonly isAllowed: boolean;
  readonly onAllow: () => void;
}

function Line({ event, isAllowed, onAllow }: LineProps) {
  const address = `${event.host}${event.port === null ? "" : `:${event.port}`}`;
  return (
    <div class={event.allowed ? "line" : "line bad"} data-host={event.host} data-allowed={event.allowed}>
      <time dateTime={event.at}>{time(event.at)}</time>
      <span class="kind">
        <span class={event.allowed ? "tag added" : "tag refused"}>{event.allowed ? "allowed" : "refused"}</span>
      </span>
      <code class="cut grow" title={event.reason}>
        {event.method ?? event.kind} {address}
        {event.path}
      </code>
      <span class="quiet cut">{event.allowed ? `${bytes(event.sent_bytes)} ↑ ${bytes(event.received_bytes)} ↓` : event.reason}</span>
      {!event.allowed && event.host !== "" && (
        <button data-action="allow" disabled={isAllowed} aria-label={`Allow ${event.host}`} onClick={onAllow}>
          {isAllowed ? "Allowed" : "Allow"}
        </button>
      )}
    </div>
  );
}

function withDomain(network: Policy, host: string): Policy {
  if (network === "none") return { allow: [host] };
  if (typeof network === "string" || isListed(network, host)) return network;
  return { ...network, allow: [...(network.allow ?? []), host] };
}

function isListed(network: Policy | undefined, host: string): boolean {
  return typeof network === "object" && (network.allow ?? []).some((rule) => (typeof rule === "string" ? rule : rule.host) === host);
}

function describe(policy: NetworkPolicy | undefined): string {
  const hosts = (policy?.allow ?? []).map((rule) => (typeof rule === "string" ? rule : rule.host));
  return hosts.length === 0 ? "nothing is allowed" : `only ${hosts.join(", ")}`;
}
