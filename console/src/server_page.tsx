/** The server: health, nodes, warm pool, images, snapshots, volumes and keys. */

import { type ComponentChildren } from "preact";

import { confirmed } from "./dialog";
import { bytes, moment } from "./format";
import { KeysPanel } from "./keys_panel";
import { useAsked } from "./live";
import { attempt } from "./notice";
import { ownClient, session } from "./session";
import { ServerHealth } from "./server_health";
import { ServerNodes } from "./server_nodes";

export function ServerPage() {
  return (
    <section class="page scrolled" aria-label="Server">
      <div class="bar">
        <h1>Server</h1>
        <span class="quiet">Cove {session.value?.version}</span>
      </div>
      {session.value?.is_admin === true && <ServerNodes />}
      <ServerHealth />
      {session.value?.is_admin === true && <KeysPanel />}
      <Images />
      <Snapshots />
      <Volumes />
    </section>
  );
}

function Images() {
  const { transport } = ownClient();
  const { value, refresh, problem } = useAsked(() => ownClient().images(), []);
  const remove = (image: string): Promise<void> => removed(image, () => transport.call("delete_image", { path: { image } }), refresh);
  return (
    <Things title="Images" heads={["Name", "Size", "Layers", "Made", ""]} problem={problem} isEmpty={value?.length === 0}>
      {value?.map((each) => (
        <tr key={each.name + each.id}>
          <td>{each.name}</td>
          <td>{bytes(each.size)}</td>
          <td>{each.layers}</td>
          <td>{moment(each.created_at)}</td>
          <Remove name={each.name} onClick={() => remove(each.name)} />
        </tr>
      ))}
    </Things>
  );
}

function Snapshots() {
  const { transport } = ownClient();
  const { value, refresh, problem } = useAsked(() => ownClient().snapshots(), []);
  const remove = (snapshot: string): Promise<void> => removed(snapshot, () => transport.call("delete_snapshot", { path: { snapshot } }), refresh);
  return (
    <Things title="Snapshots" heads={["Name", "Id", "Size", "Made", ""]} problem={problem} isEmpty={value?.length === 0}>
      {value?.map((each) => (
        <tr key={each.id}>
          <td>{each.name ?? ""}</td>
          <td>
            <code>{each.id}</code>
          </td>
          <td>{bytes(each.size)}</td>
          <td>{moment(each.created_at)}</td>
          <Remove name={each.name ?? each.id} onClick={() => remove(each.id)} />
        </tr>
      ))}
    </Things>
  );
}

function Volumes() {
  const { transport } = ownClient();
  const { value, refresh, problem } = useAsked(() => ownClient().volumes(), []);
  const remove = (volume: string): Promise<void> => removed(volume, () => transport.call("delete_volume", { path: { volume } }), refresh);
  return (
    <Things title="Volumes" heads={["Name", "Used", "Size", "Made", ""]} problem={problem} isEmpty={value?.length === 0}>
      {value?.map((each) => (
        <tr key={each.name}>
          <td>{each.name}</td>
          <td>{bytes(each.used_bytes)}</td>
          <td>{each.size === null ? "any" : bytes(each.size)}</td>
          <td>{moment(each.created_at)}</td>
          <Remove name={each.name} onClick={() => remove(each.name)} />
        </tr>
      ))}
    </Things>
  );
}

async function removed(name: string, work: () => Promise<unknown>, refresh: () => void): Promise<void> {
  if (await confirmed(`Remove ${name}?`, "Remove")) await attempt(() => work().then(refresh), `${name} is removed`);
}

interface ThingsProps {
  readonly title: string;
  readonly heads: readonly string[];
  readonly problem: string;
  readonly isEmpty: boolean;
  readonly action?: ComponentChildren;
  readonly children: ComponentChildren;
}

export function Things({ title, heads, problem, isEmpty, action, children }: ThingsProps) {
  return (
    <section class="things" aria-label={title}>
      <div class="title">
        <h2>{title}</h2>
        {action}
      </div>
      {problem !== "" && <p class="problem">{problem}</p>}
      {isEmpty ? (
        <p class="quiet">There are none.</p>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label={`Table of ${title.toLowerCase()}`}>
          <table>
            <thead>
              <tr>{heads.map((head) => (head === "" ? <td key={head} /> : <th key={head} scope="col">{head}</th>))}</tr>
            </thead>
            <tbody>{children}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}

export function Remove({ name, onClick, verb = "Remove" }: { readonly name: string; readonly onClick: () => void; readonly verb?: string }) {
  return (
    <td class="end">
      <button class="danger" aria-label={`${verb} ${name}`} onClick={onClick}>
        {verb}
      </button>
    </td>
  );
}
