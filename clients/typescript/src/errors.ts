/** Errors of the API, each with its stable code. */

export class CoveError extends Error {
  override readonly name: string = "CoveError";

  constructor(
    message: string,
    readonly code: string,
    readonly status = 0,
    readonly details: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }
}

/** The connection broke, or no server answers. What was asked may have run. */
export class ConnectionLost extends CoveError {
  override readonly name = "ConnectionLost";

  constructor(message: string, code = "CONNECTION_LOST", status = 0) {
    super(message, code, status);
  }
}

const LOST_CODES: ReadonlySet<string> = new Set(["CONNECTION_LOST", "NODE_LOST"]);
const AWAY_STATUS: ReadonlySet<number> = new Set([502, 504]);

/** Make the error that a body of the API says. */
export function errorFrom(body: unknown, status: number): CoveError {
  const { error, code, details } = typeof body === "object" && body !== null ? (body as ErrorFields) : {};
  const message = typeof error === "string" ? error : `the server answered with status ${status}`;
  const name = typeof code === "string" ? code : "UNKNOWN";
  if (LOST_CODES.has(name) || (name === "UNKNOWN" && AWAY_STATUS.has(status))) return new ConnectionLost(message, name, status);
  return new CoveError(message, name, status, typeof details === "object" && details !== null ? details : {});
}

interface ErrorFields {
  readonly error?: unknown;
  readonly code?: unknown;
  readonly details?: Record<string, unknown> | null;
}
