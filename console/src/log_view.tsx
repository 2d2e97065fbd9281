/** What a process prints, live, with a bounded scroll-back. */

import { type Process } from "cove-client";
import { useEffect, useRef, useState } from "preact/hooks";

import type { Screen } from "./screen";
import { SearchBar } from "./terminal_view";

const FRAME_BYTES = 256 << 10;

export function LogView({ process }: { readonly process: Process }) {
  const element = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const [state, setState] = useState("connecting…");
  useEffect(() => {
    const ending = new AbortController();
    const follow = async (): Promise<void> => {
      const { openScreen } = await import("./screen");
      if (ending.signal.aborted || element.current === null) return;
      const opened = openScreen(element.current, `Log of ${process.id}`, {});
      screen.current = opened;
      setState("live");
      let shown = 0;
      for await (const event of process.logs({ follow: true }, ending.signal)) {
        if (event.type === "output") {
          await opened.write(event.data);
          shown += event.data.length;
        }
        if (event.type === "gap") await opened.write(`\n[${event.bytes} bytes passed by]\n`);
        if (event.type === "exit") setState(`${event.outcome}${event.exit_code === null ? "" : ` ${event.exit_code}`}`);
        if (shown >= FRAME_BYTES) {
          shown = 0;
          await new Promise(requestAnimationFrame);
        }
      }
    };
    follow().catch((error: unknown) => {
      if (!ending.signal.aborted) setState(error instanceof Error ? error.message : String(error));
    });
    return () => {
      ending.abort();
      screen.current?.dispose();
      screen.current = null;
    };
  }, [process.sandbox, process.id]);
  return (
    <div class="screen-box">
      <SearchBar onFind={(text, isBackwards) => screen.current?.find(text, isBackwards)} label={`Search in the log of ${process.id}`} state={state} />
      <div class="screen" data-log={process.id} data-state={state} ref={element} />
    </div>
  );
}
