/** Code cells on a context. */

import { type CodeEvent } from "cove-client";
import { useEffect, useRef, useState } from "preact/hooks";

import { CodeEditor } from "./code_editor";
import { useAsked } from "./live";
import { attempt } from "./notice";
import { ResultView } from "./result_view";
import { type TabProps } from "./sandbox_page";

const LANGUAGES = ["python", "javascript", "typescript"];
const MOST_CELLS = 40;
const MOST_EVENTS = 500;

interface Cell {
  readonly number: number;
  readonly code: string;
  readonly events: readonly CodeEvent[];
  readonly isRunning: boolean;
  readonly problem: string;
}

export function CodeTab({ sandbox }: TabProps) {
  const { value, problem, refresh } = useAsked(() => sandbox.code.contexts(), [sandbox]);
  const [chosen, setChosen] = useState<string | null>(null);
  const [language, setLanguage] = useState("python");
  const [code, setCode] = useState("");
  const [cells, setCells] = useState<readonly Cell[]>([]);
  const context = value?.find((each) => each.id === chosen) ?? value?.[0];
  const isRunning = cells.some((cell) => cell.isRunning);
  const list = useRef<HTMLOListElement>(null);
  useEffect(() => list.current?.lastElementChild?.scrollIntoView({ block: "nearest" }), [cells]);
  const create = (): Promise<boolean> =>
    attempt(async () => {
      setChosen((await sandbox.code.create(language)).id);
      refresh();
    });
  const run = async (): Promise<void> => {
    const number = (cells.at(-1)?.number ?? 0) + 1;
    setCells((all) => [...all, { number, code, events: [], isRunning: true, problem: "" }].slice(-MOST_CELLS));
    const change = (update: (cell: Cell) => Cell): void => setCells((all) => all.map((cell) => (cell.number === number ? update(cell) : cell)));
    let problem = "";
    try {
      const id = context?.id ?? (await sandbox.code.create(language)).id;
      if (context === undefined) refresh();
      for await (const event of sandbox.code.stream(id, code)) {
        change((cell) => ({ ...cell, events: joined(cell.events, event) }));
      }
    } catch (error) {
      problem = error instanceof Error ? error.message : String(error);
    }
    change((cell) => ({ ...cell, isRunning: false, problem }));
  };
  return (
    <div class="fill cells">
      <div class="subtabs">
        <select aria-label="Context" value={context?.id ?? ""} onChange={(event) => setChosen(event.currentTarget.value)}>
          {context === undefined && <option value="">new {language} context</option>}
          {value?.map(({ id, language: speaks }) => (
            <option key={id} value={id}>
              {id} ({speaks})
            </option>
          ))}
        </select>
        <select aria-label="Language" value={language} onChange={(event) => setLanguage(event.currentTarget.value)}>
          {LANGUAGES.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <button onClick={create}>New context</button>
        {isRunning && context !== undefined && <button onClick={() => attempt(() => sandbox.code.interrupt(context.id))}>Interrupt</button>}
      </div>
      {problem !== "" && <p class="problem">{problem}</p>}
      <ol class="history" aria-label="Cells" ref={list}>
        {cells.map((cell) => (
          <li key={cell.number} data-cell={cell.number} data-running={cell.isRunning}>
            <pre class="code" tabIndex={0}>
              {cell.code}
            </pre>
            {cell.events.map((event, index) => (
              <ResultView key={index} event={event} />
            ))}
            {cell.isRunning && <p class="quiet">running…</p>}
            {cell.problem !== "" && (
              <p class="problem" role="alert">
                {cell.problem}
              </p>
            )}
          </li>
        ))}
      </ol>
      <div class="cell-editor" data-editor="cell">
        <CodeEditor path={`cell.${language === "python" ? "py" : "ts"}`} text="" label="Code" onChange={setCode} onRun={run} />
        <button class="primary" data-action="run" disabled={isRunning || code.trim() === ""} onClick={run}>
          Run (Ctrl+Enter)
        </button>
      </div>
    </div>
  );
}

/** Text of one stream that follows such text is joined to it; the number of events is bounded. */
function joined(events: readonly CodeEvent[], event: CodeEvent): readonly CodeEvent[] {
  const last = events.at(-1);
  if (last?.type === "text" && event.type === "text" && last.stream === event.stream) {
    return [...events.slice(0, -1), { ...last, text: (last.text + event.text).slice(-200_000) }];
  }
  return [...events, event].slice(-MOST_EVENTS);
}
