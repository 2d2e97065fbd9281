/** Code contexts: interpreters that keep their variables. */

import { type Transport } from "./transport.js";
import { type Answer, type CodeContextInfo, type CodeEvent, type Execution } from "./types.js";

export class Code {
  constructor(
    readonly transport: Transport,
    readonly sandbox: string,
  ) {}

  get #path(): { sandbox: string } {
    return { sandbox: this.sandbox };
  }

  contexts(): Promise<CodeContextInfo[]> {
    return this.transport.call("list_code_contexts", { path: this.#path });
  }

  create(language = "python"): Promise<Answer<"create_code_context">> {
    return this.transport.call("create_code_context", { path: this.#path, body: { language } });
  }

  delete(context: string): Promise<void> {
    return this.transport.call("delete_code_context", { path: { ...this.#path, context } });
  }

  interrupt(context: string): Promise<void> {
    return this.transport.call("interrupt_context", { path: { ...this.#path, context } });
  }

  run(context: string, code: string): Promise<Execution> {
    return this.transport.call("run_in_context", { path: { ...this.#path, context }, body: { code } });
  }

  /** Run code, as events: text, displays, a failure, and the end. It is not repeated when the connection breaks. */
  async *stream(context: string, code: string, signal?: AbortSignal): AsyncGenerator<CodeEvent> {
    const path = { ...this.#path, context };
    for await (const { fields } of this.transport.once("stream_in_context", { path, body: { code }, signal })) {
      yield fields as CodeEvent;
    }
  }
}
