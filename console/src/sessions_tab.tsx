/** Sessions of a sandbox: their state, and commands that run in them. */

import { type ExecResult, type SessionInfo } from "cove-client";
import { useState } from "preact/hooks";

import { age, seconds } from "./format";
import { useAsked } from "./live";
import { attempt } from "./notice";
import { type TabProps } from "./sandbox_page";

const MOST_KEPT = 50;
const MOST_SHOWN = 100_000;

interface Done {
  readonly command: string;
  readonly result: ExecResult;
}

export function SessionsTab({ sandbox }: TabProps) {
  const { value, problem, refresh } = useAsked(() => sandbox.sessions(), [sandbox], 4000);
  const [chosen, setChosen] = useState<string | null>(null);
  const create = (): Promise<boolean> =>
    attempt(async () => {
      setChosen((await sandbox.createSession()).id);
      refresh();
    });
  const current = value?.find((each) => each.id === chosen) ?? value?.[0];
  return (
    <div class="fill">
      <div class="subtabs" role="group" aria-label="Sessions">
        {value?.map(({ id }) => (
          <span key={id} class={id === current?.id ? "subtab on" : "subtab"}>
            <button class="plain" aria-pressed={id === current?.id} onClick={() => setChosen(id)}>
              {id}
            </button>
            <button class="plain" aria-label={`End session ${id}`} onClick={() => attempt(() => sandbox.session(id).delete().then(refresh))}>
              ×
            </button>
          </span>
        ))}
        <button onClick={create}>New session</button>
      </div>
      {problem !== "" && <p class="problem">{problem}</p>}
      {current === undefined ? <p class="empty">There are no sessions.</p> : <SessionView key={current.id} info={current} sandbox={sandbox} onChange={refresh} />}
    </div>
  );
}

interface ViewProps extends Pick<TabProps, "sandbox"> {
  readonly info: SessionInfo;
  readonly onChange: () => void;
}

function SessionView({ sandbox, info, onChange }: ViewProps) {
  const [history, setHistory] = useState<readonly Done[]>([]);
  const [isBusy, setBusy] = useState(false);
  const run = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const command = String(new FormData(form).get("command") ?? "");
    setBusy(true);
    const isRun = await attempt(async () => {
      const result = await sandbox.session(info.id).exec(command);
      setHistory((done) => [...done, { command, result }].slice(-MOST_KEPT));
      onChange();
    });
    setBusy(false);
    if (isRun) form.reset();
  };
  return (
    <div class="session">
      <p class="quiet">
        {info.status} in <code>{info.cwd}</code>, {age(info.created_at)} old{info.restored && ", restored"}
      </p>
      <ol class="history" aria-label="Commands">
        {history.map(({ command, result }, index) => (
          <li key={index}>
            <code class="prompt">$ {command}</code>
            {(result.stdout + result.stderr) !== "" && <pre tabIndex={0}>{(result.stdout + result.stderr).slice(0, MOST_SHOWN)}</pre>}
            <span class={result.exitCode === 0 ? "quiet" : "problem"}>
              {result.outcome} {result.exitCode ?? ""}, {seconds(result.duration)}
            </span>
          </li>
        ))}
      </ol>
      <form class="command" onSubmit={run}>
        <input name="command" required placeholder="Command" aria-label="Command for the session" disabled={isBusy} spellcheck={false} autocomplete="off" />
        <button type="submit" disabled={isBusy}>
          {isBusy ? "Running…" : "Run"}
        </button>
      </form>
    </div>
  );
}
