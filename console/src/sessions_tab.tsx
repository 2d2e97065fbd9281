/** Sessions of a sandbox: their state, what ran in them, and commands that run in them. */

import { type SessionInfo } from "cove-client";
import { type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { age, moment, seconds, time } from "./format";
import { useAsked, useStream } from "./live";
import { attempt } from "./notice";
import { type TabProps } from "./sandbox_page";
import { type OwnCommand, type PastCommand, pastCommands, withOwnOutput } from "./session_history";

const MOST_KEPT = 300;
const MOST_SHOWN = 100_000;

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
      {value?.length === 0 && <p class="empty">There are no sessions. A session is a shell that keeps its directory and variables between commands.</p>}
      {current !== undefined && <SessionView key={current.id} info={current} sandbox={sandbox} onChange={refresh} />}
    </div>
  );
}

interface ViewProps extends Pick<TabProps, "sandbox"> {
  readonly info: SessionInfo;
  readonly onChange: () => void;
}

function SessionView({ sandbox, info, onChange }: ViewProps) {
  const { events, problem } = useStream((signal) => pastCommands(sandbox, info.id, signal), [sandbox, info.id], MOST_KEPT);
  const [own, setOwn] = useState<readonly OwnCommand[]>([]);
  const [isBusy, setBusy] = useState(false);
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => list.current?.scrollTo(0, list.current.scrollHeight), [events]);
  const run = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const text = String(new FormData(form).get("command") ?? "");
    const after = events.at(-1)?.cursor ?? null;
    setBusy(true);
    const isRun = await attempt(async () => {
      const result = await sandbox.session(info.id).exec(text);
      setOwn((all) => [...all, { after, text, result }].slice(-MOST_KEPT));
      onChange();
    });
    setBusy(false);
    if (isRun) form.reset();
    form.querySelector("input")?.focus();
  };
  return (
    <div class="session" data-session={info.id}>
      <Variables sandbox={sandbox} id={info.id} version={events.length}>
        <span class="quiet">
          {info.status} in <code data-cwd>{info.cwd}</code>, {age(info.created_at)} old{info.restored && ", restored"}
        </span>
      </Variables>
      {problem !== "" && <p class="problem">{problem}</p>}
      <ol class="history grow" aria-label="Commands" ref={list} tabIndex={0}>
        {events.length === 0 && <li class="quiet">Nothing has run here yet.</li>}
        {withOwnOutput(events, own).map((command) => (
          <PastView key={command.cursor} command={command} />
        ))}
      </ol>
      <form class="command" onSubmit={run}>
        <input name="command" required placeholder="Command" aria-label="Command for the session" readOnly={isBusy} spellcheck={false} autocomplete="off" />
        <button class="primary" type="submit" disabled={isBusy}>
          {isBusy ? "Running…" : "Run"}
        </button>
      </form>
    </div>
  );
}

function PastView({ command }: { readonly command: PastCommand }) {
  const { text, output, outcome, exitCode, duration, key, at } = command;
  return (
    <li data-command={text ?? ""}>
      <div class="past">
        <code class="prompt">$ {text ?? "a command whose text the journal does not keep"}</code>
        <span class={exitCode === 0 ? "quiet" : "problem"}>
          {exitCode === null ? outcome : `exit ${exitCode}`}, {seconds(duration)}
        </span>
        <time class="quiet" dateTime={at} title={moment(at)}>
          {time(at)}
        </time>
        {key !== null && <span class="tag">{key}</span>}
      </div>
      {output.map((piece, index) => (
        <pre key={index} class={piece.stream === "stderr" ? "problem" : ""} tabIndex={0}>
          {piece.text.slice(0, MOST_SHOWN)}
          {piece.isCut && "\n[the journal keeps no more of it]"}
        </pre>
      ))}
    </li>
  );
}

interface VariablesProps extends Pick<TabProps, "sandbox"> {
  readonly id: string;
  readonly version: number;
  readonly children: ComponentChildren;
}

/** The state of a session in a line, with its variables when they are wanted. */
function Variables({ sandbox, id, version, children }: VariablesProps) {
  const [isOpen, setOpen] = useState(false);
  const { value, problem } = useAsked(async () => (isOpen ? sandbox.session(id).env() : null), [sandbox, id, version, isOpen]);
  const variables = Object.entries(value ?? {}).sort(([one], [other]) => one.localeCompare(other));
  return (
    <details class="variables" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {children} <span class="more">Variables</span>
      </summary>
      {problem !== "" && <p class="problem">{problem}</p>}
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of variables">
        <table>
          <tbody>
            {variables.map(([name, content]) => (
              <tr key={name} data-variable={name}>
                <th scope="row">{name}</th>
                <td>
                  <code>{content}</code>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
