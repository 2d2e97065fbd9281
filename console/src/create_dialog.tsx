/** Make a sandbox: image, limits and network. */

import { type Network, type NetworkPolicy, type SandboxSpec } from "cove-client";
import { useEffect, useState } from "preact/hooks";

import { Dialog } from "./dialog";
import { parseBytes } from "./format";
import { sandboxLink } from "./route";
import { ownClient } from "./session";

export function CreateDialog({ onClose }: { readonly onClose: () => void }) {
  const [images, setImages] = useState<string[]>([]);
  const [problem, setProblem] = useState("");
  const [network, setNetwork] = useState("none");
  useEffect(() => {
    ownClient().images().then((found) => setImages(found.map((each) => each.name)), () => undefined);
  }, []);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const field = (name: string): string => String(form.get(name) ?? "").trim();
    try {
      const id = field("id");
      const made = await ownClient().create({ ...(id === "" ? {} : { id }), spec: specOf(field) });
      onClose();
      location.hash = sandboxLink(made.id, null);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <Dialog title="New sandbox" onClose={onClose}>
      <form class="fields" onSubmit={submit}>
        <Field name="id" label="Id (optional)" hint="one is made" />
        <label>
          Image
          <select name="image">
            <option value="">This machine's system</option>
            {images.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <div class="three">
          <Field name="memory" label="Memory" hint="512M" />
          <Field name="cpus" label="Processors" hint="1.5" />
          <Field name="disk" label="Disk" hint="2G" />
        </div>
        <label>
          Network
          <select name="network" value={network} onChange={(event) => setNetwork(event.currentTarget.value)}>
            <option value="none">None</option>
            <option value="policy">Only some domains</option>
            <option value="internet">Internet</option>
          </select>
        </label>
        {network === "policy" && <Field name="domains" label="Domains, separated by spaces" hint="pypi.org files.pythonhosted.org" />}
        <Field name="labels" label="Labels (optional)" hint="team=red run=7" />
        {problem !== "" && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <div class="actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button class="primary" type="submit">
            Create
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function Field({ name, label, hint }: { readonly name: string; readonly label: string; readonly hint: string }) {
  return (
    <label>
      {label}
      <input name={name} placeholder={hint} autocomplete="off" spellcheck={false} />
    </label>
  );
}

function specOf(field: (name: string) => string): SandboxSpec {
  const limits = Object.entries({ memory: size(field("memory")), cpus: number(field("cpus")), disk: size(field("disk")) });
  const pairs = field("labels").split(/\s+/).filter((word) => word.includes("="));
  return {
    ...(field("image") === "" ? {} : { image: field("image") }),
    limits: Object.fromEntries(limits.filter(([, value]) => value !== null)),
    network: networkOf(field("network"), field("domains")),
    labels: Object.fromEntries(pairs.map((word) => [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)])),
  };
}

function networkOf(choice: string, domains: string): Network | NetworkPolicy {
  if (choice === "policy") return { allow: domains.split(/[\s,]+/).filter((word) => word !== "") };
  return choice === "internet" ? "internet" : "none";
}

function size(text: string): number | null {
  if (text === "") return null;
  const found = parseBytes(text);
  if (found === null) throw new Error(`${text} is no size: write 512M or 2G`);
  return found;
}

function number(text: string): number | null {
  if (text === "") return null;
  if (!(Number(text) > 0)) throw new Error(`${text} is no number of processors`);
  return Number(text);
}
