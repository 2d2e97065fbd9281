/** A terminal emulator in an element; loaded when it is first needed. */

import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { Terminal } from "@xterm/xterm";

import { theme } from "./theme";

const THEMES = {
  light: { background: "#ffffff", foreground: "#1c2630", cursor: "#2563a8", selectionBackground: "#bcd7f2", white: "#5b6773", brightWhite: "#1c2630", yellow: "#8a6100", green: "#1c7a3f", cyan: "#0f6f80", brightBlue: "#1f5fa6", brightGreen: "#1c7a3f", brightYellow: "#8a6100", brightCyan: "#0f6f80", brightRed: "#b3261e", brightMagenta: "#8a2f86" },
  dark: { background: "#0d1319", foreground: "#d6dee6", cursor: "#7ab7f5", selectionBackground: "#2c4a68" },
};

/** A terminal takes the tab key, so that another one has to lead out of it: to the tab that it is in. */
function leaves(event: KeyboardEvent): boolean {
  const isLeaving = event.key === "Escape" && event.shiftKey;
  if (isLeaving && event.type === "keydown") document.querySelector<HTMLElement>("[role=tab][aria-selected=true]")?.focus();
  return isLeaving;
}

export interface Screen {
  /** Show bytes; resolves when they are shown, so that a fast writer is held back. */
  write(data: Uint8Array | string): Promise<void>;
  find(text: string, isBackwards?: boolean): void;
  focus(): void;
  clear(): void;
  readonly size: { cols: number; rows: number };
  dispose(): void;
}

export interface Listeners {
  readonly onData?: (data: string) => void;
  readonly onResize?: (cols: number, rows: number) => void;
}

export function openScreen(element: HTMLElement, label: string, { onData, onResize }: Listeners): Screen {
  const terminal = new Terminal({
    fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace",
    fontSize: 13,
    scrollback: 5000,
    theme: THEMES[theme.peek()],
    disableStdin: onData === undefined,
    convertEol: onData === undefined,
    cursorBlink: false,
  });
  const [fit, search] = [new FitAddon(), new SearchAddon()];
  terminal.loadAddon(fit);
  terminal.loadAddon(search);
  terminal.loadAddon(new WebLinksAddon((_, link) => void window.open(link, "_blank", "noopener,noreferrer")));
  terminal.open(element);
  terminal.textarea?.setAttribute("aria-label", `${label}. Shift+Escape leaves it.`);
  terminal.attachCustomKeyEventHandler((event) => !leaves(event));
  if (onData !== undefined) terminal.onData(onData);
  terminal.onResize(({ cols, rows }) => onResize?.(cols, rows));
  const observer = new ResizeObserver(() => element.clientHeight > 0 && fit.fit());
  observer.observe(element);
  fit.fit();
  const forget = theme.subscribe((value) => (terminal.options.theme = THEMES[value]));
  return {
    write: (data) => new Promise((resolve) => terminal.write(data, resolve)),
    find: (text, isBackwards = false) => void (isBackwards ? search.findPrevious(text) : search.findNext(text)),
    focus: () => terminal.focus(),
    clear: () => terminal.reset(),
    get size() {
      return { cols: terminal.cols, rows: terminal.rows };
    },
    dispose: () => {
      forget();
      observer.disconnect();
      terminal.dispose();
    },
  };
}
