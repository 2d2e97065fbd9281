/** What differs from the creation, or from a snapshot. */

import { type Sandbox } from "cove-client";
import { useState } from "preact/hooks";

import { bytes, moment } from "./format";
import { useAsked } from "./live";
import { clientOf } from "./session";
import { route } from "./route";

const MOST_LINES = 3000;

export function DiffView({ sandbox, version }: { readonly sandbox: Sandbox; readonly version: number }) {
  const [since, setSince] = useState("");
  const [path, setPath] = useState<string | null>(null);
  const from = since === "" ? undefined : since;
  const snapshots = useAsked(() => clientOf(route.peek().owner).snapshots(), [sandbox]).value;
  const { value, problem } = useAsked(() => sandbox.files.changes(from), [sandbox, since, version]);
  const patch = useAsked(async () => (path === null ? "" : sandbox.files.diff(path, from)), [sandbox, since, path, version]);
  return (
    <div class="file">
      <div class="screen-bar">
        <label>
          Against{" "}
          <select value={since} onChange={(event) => setSince(event.currentTarget.value)}>
            <option value="">the creation</option>
            {snapshots?.map((each) => (
              <option key={each.id} value={each.id}>
                {each.name ?? each.id}, {moment(each.created_at)}
              </option>
            ))}
          </select>
        </label>
        <span class="quiet">{value?.length === 1 ? "1 file differs" : `${value?.length ?? 0} files differ`}</span>
      </div>
      {(problem !== "" || patch.problem !== "") && <p class="problem">{problem || patch.problem}</p>}
      <ul class="items changes" aria-label="Changed files">
        {value?.slice(0, 1000).map((change) => (
          <li key={change.path} class={change.path === path ? "item on" : "item"}>
            <button class="plain grow" onClick={() => setPath(change.path)}>
              <span class={`tag ${change.kind}`}>{change.kind}</span> <code>{change.path}</code>
            </button>
            <span class="quiet">{bytes(change.size)}</span>
          </li>
        ))}
      </ul>
      {patch.value !== null && patch.value !== "" && (
        <pre class="diff" tabIndex={0}>
          {patch.value.split("\n").slice(0, MOST_LINES).map((line, index) => (
            <span key={index} class={kindOf(line)}>
              {line + "\n"}
            </span>
          ))}
        </pre>
      )}
    </div>
  );
}

function kindOf(line: string): string {
  if (line.startsWith("+++") || line.startsWith("---")) return "head";
  if (line.startsWith("@@")) return "hunk";
  return line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "";
}
