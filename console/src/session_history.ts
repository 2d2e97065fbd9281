/** What ran in a session, whoever ran it: from the journal, older commands first. */

import { type ExecResult, type JournalEvent, type Sandbox } from "cove-client";

import { decodedText } from "./format";

export interface PastCommand {
  readonly cursor: string;
  readonly at: string;
  /** `null` where the journal keeps no commands. */
  readonly text: string | null;
  readonly output: readonly Output[];
  readonly outcome: string;
  readonly exitCode: number | null;
  readonly duration: number;
  readonly key: string | null;
}

export interface Output {
  readonly stream: string;
  readonly text: string;
  readonly isCut: boolean;
}

/** A command that this page has run, when the last command it knew of was the one at `after`. */
export interface OwnCommand {
  readonly after: string | null;
  readonly text: string;
  readonly result: ExecResult;
}

/** Give commands of this page their output where the journal has none: it keeps output only if it is told to. */
export function withOwnOutput(past: readonly PastCommand[], own: readonly OwnCommand[]): readonly PastCommand[] {
  const found = [...past];
  const used = new Set<number>();
  for (const { after, text, result } of own) {
    const from = after === null ? 0 : past.findIndex(({ cursor }) => cursor === after) + 1;
    const at = found.findIndex((each, index) => index >= from && !used.has(index) && each.exitCode === result.exitCode && (each.text === null || each.text === text));
    const command = found[at];
    if (command === undefined) continue;
    used.add(at);
    if (command.output.length === 0) found[at] = { ...command, text, output: outputOf(result) };
  }
  return found;
}

function outputOf({ stdout, stderr, truncated }: ExecResult): readonly Output[] {
  const pieces = [
    { stream: "stdout", text: stdout, isCut: truncated },
    { stream: "stderr", text: stderr, isCut: false },
  ];
  return pieces.filter(({ text }) => text !== "");
}

/** Commands of a session as they end. What a command printed stands before it in the journal. */
export async function* pastCommands(sandbox: Sandbox, session: string, signal: AbortSignal): AsyncGenerator<PastCommand> {
  let output: Output[] = [];
  for await (const event of sandbox.journal(true, signal)) {
    if (event.subject !== session) continue;
    if (event.kind === "output" && event.operation === "command") {
      output.push({ stream: event.stream ?? "stdout", text: decodedText(event.data ?? ""), isCut: event.is_cut ?? false });
    }
    if (event.kind !== "command") continue;
    yield commandOf(event, output);
    output = [];
  }
}

function commandOf(event: JournalEvent, output: readonly Output[]): PastCommand {
  return {
    cursor: event.cursor,
    at: event.at,
    text: event.text == null ? null : event.text + (event.is_cut === true ? "…" : ""),
    output,
    outcome: event.error ?? event.outcome ?? "",
    exitCode: event.exit_code ?? null,
    duration: event.duration ?? 0,
    key: event.key ?? null,
  };
}
