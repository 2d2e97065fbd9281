/** Short messages at the edge of the page. */

import { signal } from "@preact/signals";

interface Notice {
  readonly number: number;
  readonly text: string;
  readonly isError: boolean;
}

const MOST = 5;
const SHOWN_MILLISECONDS = 8000;
const notices = signal<readonly Notice[]>([]);
let count = 0;

export function say(text: string, isError = false): void {
  const number = ++count;
  const others = notices.peek().filter((each) => each.text !== text);
  notices.value = [...others, { number, text, isError }].slice(-MOST);
  setTimeout(() => dismiss(number), SHOWN_MILLISECONDS);
}

/** Run what a user has asked for, and say how it failed. */
export async function attempt(work: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await work();
    if (done !== undefined) say(done);
    return true;
  } catch (error) {
    say(error instanceof Error ? error.message : String(error), true);
    return false;
  }
}

function dismiss(number: number): void {
  notices.value = notices.peek().filter((each) => each.number !== number);
}

export function Notices() {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map(({ number, text, isError }) => (
        <div key={number} class={isError ? "notice error" : "notice"}>
          <span>{text}</span>
          <button class="plain" aria-label="Dismiss" onClick={() => dismiss(number)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
