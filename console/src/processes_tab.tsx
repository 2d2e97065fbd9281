/** Processes of a sandbox: start, follow and kill them. */

import { type Process } from "cove-client";
import { useState } from "preact/hooks";

import { age, words } from "./format";
import { useAsked } from "./live";
import { LogView } from "./log_view";
import { attempt } from "./notice";
import { type TabProps } from "./sandbox_page";

export function ProcessesTab({ sandbox }: TabProps) {
  const { value, problem, refresh } = useAsked(() => sandbox.processes(), [sandbox], 2000);
  const [chosen, setChosen] = useState<string | null>(null);
  const start = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const command = String(new FormData(form).get("command") ?? "");
    const isStarted = await attempt(async () => {
      setChosen((await sandbox.startProcess(command)).id);
      refresh();
    });
    if (isStarted) form.reset();
  };
  const current = value?.find((each) => each.id === chosen);
  return (
    <div class="fill">
      <form class="command" onSubmit={start}>
        <input name="command" required placeholder="Command to start" aria-label="Command to start" spellcheck={false} autocomplete="off" />
        <button type="submit">Start</button>
      </form>
      {problem !== "" && <p class="problem">{problem}</p>}
      <div class="two">
        <ul class="items" aria-label="Processes">
          {value?.length === 0 && <li class="empty">No process was started.</li>}
          {value?.map((process) => (
            <Item key={process.id} process={process} isChosen={process.id === chosen} onChoose={() => setChosen(process.id)} onChange={refresh} />
          ))}
        </ul>
        {current === undefined ? <p class="empty">Choose a process to follow its log.</p> : <LogView key={current.id} process={current} />}
      </div>
    </div>
  );
}

interface ItemProps {
  readonly process: Process;
  readonly isChosen: boolean;
  readonly onChoose: () => void;
  readonly onChange: () => void;
}

function Item({ process, isChosen, onChoose, onChange }: ItemProps) {
  const { id, info } = process;
  const isRunning = info.status === "running" || info.status === "starting";
  return (
    <li class={isChosen ? "item on" : "item"} data-process={id} data-status={info.status}>
      <button class="plain grow" aria-pressed={isChosen} onClick={onChoose}>
        <code class="cut">{words(info.command)}</code>
        <span class="quiet">
          {id}, {info.status}
          {info.exit_code !== null && ` ${info.exit_code}`}, {age(info.started_at)}
        </span>
      </button>
      {isRunning && (
        <button class="danger" aria-label={`Kill ${id}`} onClick={() => attempt(() => process.kill().then(onChange))}>
          Kill
        </button>
      )}
    </li>
  );
}
