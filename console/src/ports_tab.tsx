/** Ports that a sandbox exposes, with a preview. */

import { useState } from "preact/hooks";

import { useAsked } from "./live";
import { attempt } from "./notice";
import { type TabProps } from "./sandbox_page";

export function PortsTab({ sandbox }: TabProps) {
  const { value, problem, refresh } = useAsked(() => sandbox.ports(), [sandbox], 4000);
  const [shown, setShown] = useState<string | null>(null);
  const expose = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    await attempt(() => sandbox.exposePort(Number(new FormData(form).get("port"))).then(refresh));
  };
  return (
    <div class="fill">
      <form class="command narrow" onSubmit={expose}>
        <input name="port" type="number" min={1} max={65535} required placeholder="Port inside" aria-label="Port inside" />
        <button type="submit">Expose</button>
      </form>
      {problem !== "" && <p class="problem">{problem}</p>}
      <ul class="items" aria-label="Exposed ports">
        {value?.length === 0 && <li class="empty">No port is exposed.</li>}
        {value?.map(({ port, url, name }) => (
          <li key={port} class="item" data-port={port}>
            <strong>{port}</strong> {name !== "" && <span>{name}</span>}
            <code class="quiet cut grow">{url}</code>
            <button aria-pressed={shown === url} onClick={() => setShown(shown === url ? null : url)}>
              Preview
            </button>
            <a class="button" href={url} target="_blank" rel="noopener noreferrer">
              Open in a new tab
            </a>
            <button class="danger" aria-label={`Close port ${port}`} onClick={() => attempt(() => sandbox.unexposePort(port).then(refresh))}>
              Close
            </button>
          </li>
        ))}
      </ul>
      {shown !== null && (
        <iframe
          class="preview"
          title="Preview"
          src={shown}
          referrerpolicy="no-referrer"
          sandbox="allow-scripts allow-forms allow-same-origin allow-popups allow-downloads allow-modals"
        />
      )}
    </div>
  );
}
