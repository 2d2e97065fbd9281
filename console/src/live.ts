/** Values that are asked for again while they are shown, and streams that end with their view. */

import { useCallback, useEffect, useState } from "preact/hooks";

const LEAST_PAUSE = 2000;

export interface Asked<T> {
  readonly value: T | null;
  readonly problem: string;
  readonly refresh: () => void;
}

/** Ask at once, when told to, and every so many milliseconds while the page is visible. */
export function useAsked<T>(ask: () => Promise<T>, inputs: readonly unknown[], pause = 0): Asked<T> {
  const [value, setValue] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  const refresh = useCallback(() => {
    ask().then(
      (found) => {
        setValue(found);
        setProblem("");
      },
      (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)),
    );
  }, inputs);
  useEffect(() => {
    refresh();
    if (pause === 0) return undefined;
    const timer = setInterval(() => document.visibilityState === "visible" && refresh(), Math.max(pause, LEAST_PAUSE));
    return () => clearInterval(timer);
  }, [refresh, pause]);
  return { value, problem, refresh };
}

/** The last events of a stream, at most `most`; they are shown once in a frame at the most. */
export function useStream<T>(open: (signal: AbortSignal) => AsyncGenerator<T>, inputs: readonly unknown[], most: number) {
  const [events, setEvents] = useState<readonly T[]>([]);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const ending = new AbortController();
    let waiting: T[] = [];
    let frame = 0;
    const show = (): void => {
      frame = 0;
      const taken = waiting;
      waiting = [];
      setEvents((shown) => [...shown, ...taken].slice(-most));
    };
    const follow = async (): Promise<void> => {
      for await (const event of open(ending.signal)) {
        waiting.push(event);
        if (waiting.length > most) waiting = waiting.slice(-most);
        if (frame === 0) frame = requestAnimationFrame(show);
      }
    };
    setEvents([]);
    setProblem("");
    follow().catch((error: unknown) => {
      if (!ending.signal.aborted) setProblem(error instanceof Error ? error.message : String(error));
    });
    return () => {
      ending.abort();
      cancelAnimationFrame(frame);
    };
  }, inputs);
  return { events, problem };
}
