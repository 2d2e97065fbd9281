/** A shell with state. */

import { type Transport } from "./transport.js";
import { type Answer, type Body, type ExecResult } from "./types.js";

export class Session {
  constructor(
    readonly transport: Transport,
    readonly sandbox: string,
    readonly id: string,
  ) {}

  get #path(): { sandbox: string; session: string } {
    return { sandbox: this.sandbox, session: this.id };
  }

  async exec(command: string, options: Omit<Body<"session_exec">, "command"> = {}, signal?: AbortSignal): Promise<ExecResult> {
    return execResult(await this.transport.call("session_exec", { path: this.#path, body: { ...options, command }, signal }));
  }

  async env(): Promise<Record<string, string>> {
    return (await this.transport.call("session_env", { path: this.#path })).env;
  }

  async cwd(): Promise<string> {
    return (await this.transport.call("session_cwd", { path: this.#path })).cwd;
  }

  /** End it and all it started. */
  delete(): Promise<void> {
    return this.transport.call("delete_session", { path: this.#path });
  }
}

/** Decode a result; the server leaves out what is as by default. */
export function execResult(reply: Partial<Answer<"exec">>): ExecResult {
  const stdoutBytes = bytesOf(reply.stdout, reply.stdout_encoding);
  const stderrBytes = bytesOf(reply.stderr, reply.stderr_encoding);
  return {
    outcome: reply.outcome ?? "exited",
    exitCode: reply.exit_code ?? null,
    signal: reply.signal ?? null,
    stdout: reply.stdout_encoding === "base64" ? new TextDecoder().decode(stdoutBytes) : (reply.stdout ?? ""),
    stderr: reply.stderr_encoding === "base64" ? new TextDecoder().decode(stderrBytes) : (reply.stderr ?? ""),
    stdoutBytes,
    stderrBytes,
    duration: reply.duration ?? 0,
    truncated: reply.truncated ?? false,
  };
}

function bytesOf(text = "", encoding: "base64" | "utf-8" = "utf-8"): Uint8Array {
  if (encoding === "utf-8") return new TextEncoder().encode(text);
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
