/** The terminals of a sandbox, shared with whoever else looks. */

import { useEffect, useState } from "preact/hooks";

import { useAsked } from "./live";
import { attempt } from "./notice";
import { type TabProps } from "./sandbox_page";
import { TerminalView } from "./terminal_view";

export function TerminalTab({ sandbox }: TabProps) {
  const { value, problem, refresh } = useAsked(() => sandbox.terminals(), [sandbox], 4000);
  const [chosen, setChosen] = useState<string | null>(null);
  const running = (value ?? []).filter((each) => each.is_running || each.id === chosen);
  const current = running.find((each) => each.id === chosen) ?? running[0];
  const open = async (id?: string): Promise<void> => {
    await attempt(async () => {
      const made = await sandbox.openTerminal(id === undefined ? {} : { id });
      setChosen(made.id);
      refresh();
    });
  };
  useEffect(() => {
    if (value !== null && running.length === 0) void open("main");
  }, [value !== null]);
  const tabs = (
    <div class="subtabs" role="group" aria-label="Terminals">
      {running.map(({ id }) => (
        <span key={id} class={id === current?.id ? "subtab on" : "subtab"}>
          <button class="plain" aria-pressed={id === current?.id} onClick={() => setChosen(id)}>
            {id}
          </button>
          <button class="plain" aria-label={`End terminal ${id}`} onClick={() => attempt(() => sandbox.destroyTerminal(id).then(refresh))}>
            ×
          </button>
        </span>
      ))}
      <button data-action="new-terminal" onClick={() => open()}>
        New terminal
      </button>
    </div>
  );
  return (
    <div class="fill">
      {problem !== "" && <p class="problem">{problem}</p>}
      {current === undefined ? (
        tabs
      ) : (
        <TerminalView key={current.id} sandbox={sandbox} id={current.id}>
          {tabs}
        </TerminalView>
      )}
    </div>
  );
}
