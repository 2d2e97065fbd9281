/** A viewer of one terminal of a sandbox. */

import { type Sandbox, type TerminalEvent } from "cove-client";
import { type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import type { Screen } from "./screen";

interface Props {
  readonly sandbox: Sandbox;
  readonly id: string;
  /** What stands beside the search, above the screen. */
  readonly children: ComponentChildren;
}

export function TerminalView({ sandbox, id, children }: Props) {
  const element = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const [state, setState] = useState("connecting…");
  useEffect(() => {
    const viewer = sandbox.connectTerminal(id);
    const focused = document.activeElement;
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
          if (isFree(focused)) opened.focus();
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
      <SearchBar onFind={(text, isBackwards) => screen.current?.find(text, isBackwards)} label={`Search in terminal ${id}`} state={state}>
        {children}
      </SearchBar>
      <div class="screen" data-terminal={id} data-state={state === "" ? "live" : state} ref={element} />
    </div>
  );
}

/** Whoever has moved the focus while a terminal was connecting keeps it. */
function isFree(before: Element | null): boolean {
  const now = document.activeElement;
  return now === null || now === document.body || now === before;
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
  readonly children?: ComponentChildren;
}

export function SearchBar({ onFind, label, state, children }: SearchProps) {
  const find = (event: KeyboardEvent): void => {
    if (event.key === "Enter") onFind((event.currentTarget as HTMLInputElement).value, event.shiftKey);
  };
  return (
    <div class="screen-bar">
      {children}
      <span class="quiet end" role="status">
        {state}
      </span>
      <input type="search" placeholder="Search, Enter" title="Enter: next, Shift+Enter: previous" aria-label={label} onKeyDown={find} />
    </div>
  );
}
