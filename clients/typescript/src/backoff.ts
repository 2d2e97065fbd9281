/** Exponential backoff while a server is away. */

import { type ConnectionLost } from "./errors.js";

const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 2000;

export class Backoff {
  #pause = FIRST_PAUSE;
  #deadline: number | null = null;

  /** `patience` is how many seconds a server that is away is waited for. */
  constructor(readonly patience: number) {}

  /** Start again: the server has answered. */
  renew(): void {
    this.#pause = FIRST_PAUSE;
    this.#deadline = null;
  }

  /** Sleep before the next attempt, or throw the error when the time is over. */
  async pause(error: ConnectionLost, signal?: AbortSignal): Promise<void> {
    const now = performance.now();
    this.#deadline ??= now + this.patience * 1000;
    if (now >= this.#deadline) throw error;
    await sleep(Math.min(this.#pause, this.#deadline - now), signal);
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
  }
}

/** Sleep so many milliseconds; a signal ends it early, with its reason. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, milliseconds);
    if (signal?.aborted) end();
    else signal?.addEventListener("abort", end, { once: true });
  });
}
