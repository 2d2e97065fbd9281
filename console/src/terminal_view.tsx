/** A viewer of one terminal of a sandbox. */

import { type Sandbox, type TerminalEvent } from "cove-client";
import { useEffect, useRef, useState } from "preact/hooks";

import type { Screen } from "./screen";

interface Props {
  readonly sandbox: Sandbox;
  readonly id: string;
}

export function TerminalView({ sandbox, id }: Props) {
  const element = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const [state, setState] = useState("connecting…");
  useEffect(() => {
    const viewer = sandbox.connectTerminal(id);
    let isOver = false;
    const view = async (): Promise<void> => {
      const { openScreen } = await import("./screen");
      if (isOver || element.current === null) return;
      const opened = openScreen(element.current, `Terminal ${id}`, {
        onData: (data) => viewer.isOpen && viewer.write(data),
        onResize: (cols, rows) => viewer.resize(cols, rows),
      });
      screen.current = opened;
      for await (const event of viewer.events()) {
        await show(opened, event);
        if (event.type === "ready") {
          viewer.resize(opened.size.cols, opened.size.rows);
          setState("");
          opened.focus();
        }
      }
      if (!isOver) setState("ended");
    };
    view().catch((error: unknown) => setState(error instanceof Error ? error.message : String(error)));
    return () => {
      isOver = true;
      viewer.close();
      screen.current?.dispose();
      screen.current = null;
    };
  }, [sandbox, id]);
  return (
    <div class="screen-box">
      <SearchBar onFind={(text, isBackwards) => screen.current?.find(text, isBackwards)} label={`Search in terminal ${id}`} state={state} />
      <div class="screen" data-terminal={id} data-state={state === "" ? "live" : state} ref={element} />
    </div>
  );
}

async function show(screen: Screen, event: TerminalEvent): Promise<void> {
  if (event.type === "output") await screen.write(event.data);
  if (event.type === "gap") await screen.write(`\r\n[${event.bytes} bytes are no longer kept]\r\n`);
  if (event.type === "exit") await screen.write(`\r\n[ended: ${event.exit_code === null ? event.outcome : event.exit_code}]\r\n`);
}

interface SearchProps {
  readonly onFind: (text: string, isBackwards: boolean) => void;
  readonly label: string;
  readonly state: string;
}

export function SearchBar({ onFind, label, state }: SearchProps) {
  const find = (event: KeyboardEvent): void => {
    if (event.key === "Enter") onFind((event.currentTarget as HTMLInputElement).value, event.shiftKey);
  };
  return (
    <div class="screen-bar">
      <input type="search" placeholder="Search, Enter" aria-label={label} onKeyDown={find} />
      <span class="quiet" role="status">
        {state}
      </span>
    </div>
  );
}
