/** Light or dark: the system's choice, or one that is kept in this browser. */

import { signal } from "@preact/signals";

export type Theme = "light" | "dark";

const KEY = "cove-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function current(): Theme {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : system.matches ? "dark" : "light";
}

export const theme = signal<Theme>(current());
system.addEventListener("change", () => (theme.value = current()));
theme.subscribe((value) => (document.documentElement.dataset["theme"] = value));

export function switchTheme(): void {
  theme.value = theme.peek() === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, theme.peek());
}
