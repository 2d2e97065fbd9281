/** Keys and quotas; for admins. */

import { type ApiKeyInfo, type Body, type Quota } from "cove-client";
import { useState } from "preact/hooks";

import { confirmed, Dialog } from "./dialog";
import { bytes, moment, parseBytes } from "./format";
import { useAsked } from "./live";
import { attempt } from "./notice";
import { Remove, Things } from "./server_page";
import { ownClient } from "./session";

export function KeysPanel() {
  const { value, refresh, problem } = useAsked(() => ownClient().keys(), [], 10_000);
  const [isCreating, setCreating] = useState(false);
  const [made, setMade] = useState<string | null>(null);
  const revoke = async (key: ApiKeyInfo): Promise<void> => {
    if (!(await confirmed(`Revoke the key ${key.name}? Whoever uses it is thrown out.`, "Revoke"))) return;
    await attempt(() => ownClient().transport.call("delete_key", { path: { key: key.name } }).then(refresh), `${key.name} is revoked`);
  };
  const newKey = (
    <button data-action="new-key" onClick={() => setCreating(true)}>
      New key
    </button>
  );
  return (
    <>
      <Things title="Keys" heads={["Name", "Tenant", "Quota", "Last used", "Expires", ""]} problem={problem} isEmpty={value?.length === 0} action={newKey}>
        {value?.map((each) => (
          <tr key={each.name} data-key={each.name}>
            <td>
              {each.name} {each.is_admin && <span class="tag">admin</span>}
            </td>
            <td>{each.tenant}</td>
            <td>{describe(each.quota)}</td>
            <td>{moment(each.last_used_at)}</td>
            <td>{moment(each.expires_at)}</td>
            <Remove name={each.name} verb="Revoke" onClick={() => revoke(each)} />
          </tr>
        ))}
      </Things>
      {isCreating && <KeyDialog onClose={() => setCreating(false)} onMade={setMade} onChange={refresh} />}
      {made !== null && (
        <Dialog title="The new key" onClose={() => setMade(null)}>
          <p>Copy it now: it is not shown again.</p>
          <p>
            <code data-made-key>{made}</code>
          </p>
          <div class="actions">
            <button class="primary" onClick={() => setMade(null)}>
              Done
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

interface KeyDialogProps {
  readonly onClose: () => void;
  readonly onMade: (key: string) => void;
  readonly onChange: () => void;
}

function KeyDialog({ onClose, onMade, onChange }: KeyDialogProps) {
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const isMade = await attempt(async () => {
      const { key } = await ownClient().createKey(requestOf((name) => String(form.get(name) ?? "").trim()));
      onMade(key);
      onChange();
    });
    if (isMade) onClose();
  };
  return (
    <Dialog title="New key" onClose={onClose}>
      <form class="fields" onSubmit={submit}>
        <label>
          Name
          <input name="name" required autocomplete="off" />
        </label>
        <label>
          Tenant (optional)
          <input name="tenant" autocomplete="off" />
        </label>
        <label>
          Most sandboxes (optional)
          <input name="sandboxes" inputMode="numeric" />
        </label>
        <label>
          Most memory, such as 8G (optional)
          <input name="memory" />
        </label>
        <label class="check">
          <input type="checkbox" name="admin" value="yes" /> Admin
        </label>
        <div class="actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button class="primary" type="submit">
            Make key
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function requestOf(field: (name: string) => string): Body<"create_key"> {
  const memory = parseBytes(field("memory"));
  const quota: Quota = {
    ...(field("sandboxes") === "" ? {} : { max_sandboxes: Number(field("sandboxes")) }),
    ...(memory === null ? {} : { max_memory: memory }),
  };
  return {
    name: field("name"),
    is_admin: field("admin") === "yes",
    ...(field("tenant") === "" ? {} : { tenant: field("tenant") }),
    ...(Object.keys(quota).length === 0 ? {} : { quota }),
  };
}

function describe(quota: Quota): string {
  const said = [
    quota.max_sandboxes == null ? null : `${quota.max_sandboxes} sandboxes`,
    quota.max_memory == null ? null : `memory ${bytes(quota.max_memory)}`,
    quota.max_cpus == null ? null : `${quota.max_cpus} processors`,
    quota.max_disk == null ? null : `disk ${bytes(quota.max_disk)}`,
    quota.rate == null ? null : `${quota.rate} calls a second`,
  ];
  return said.filter((word) => word !== null).join(", ") || "none";
}
