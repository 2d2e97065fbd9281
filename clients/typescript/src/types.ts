/** Values of the API, by the names that the other clients give them. */

import { type ROUTES } from "./routes.js";
import { type components, type operations } from "./schema.js";

type Schemas = components["schemas"];

/** A value as the server answers it: fields that may be left out in a request are there. */
export type Full<T> = unknown extends T
  ? T
  : T extends readonly (infer Item)[]
    ? number extends T["length"]
      ? Full<Item>[]
      : T
    : T extends object
      ? { [Key in keyof T]-?: Full<Exclude<T[Key], undefined>> }
      : T;

export type OperationName = keyof operations & keyof typeof ROUTES;
type Of<Name extends OperationName> = operations[Name];

/** The body that an operation takes, or never. */
export type Body<Name extends OperationName> =
  Of<Name> extends { requestBody?: { content: { "application/json": infer Content } } } ? Content : never;

/** The query that an operation takes. */
export type Query<Name extends OperationName> = Of<Name> extends { parameters: { query?: infer Fields } } ? NonNullable<Fields> : never;

/** The ids in an operation's path. */
export type Ids<Name extends OperationName> = Of<Name> extends { parameters: { path: infer Fields } } ? Fields : Record<string, never>;

type Success<Responses> = Responses[keyof Responses & (200 | 201)];

/** What an operation answers. */
export type Answer<Name extends OperationName> =
  Of<Name> extends { responses: infer Responses }
    ? [Success<Responses>] extends [never]
      ? void
      : Success<Responses> extends { content: { "application/json": infer Content } }
        ? Full<Content>
        : void
    : void;

export type SandboxInfo = Full<Schemas["SandboxInfo"]>;
export type SandboxSpec = Schemas["SandboxSpec"];
export type SandboxStatus = Schemas["SandboxStatus"];
export type Limits = Schemas["Limits"];
export type Network = Schemas["Network"];
export type NetworkPolicy = Schemas["NetworkPolicy"];
export type NetworkEvent = Full<Schemas["NetworkEvent"]>;
export type JournalEvent = Schemas["JournalEvent"];
export type JournalKind = Schemas["JournalKind"];
export type Usage = Full<Schemas["Usage"]>;
export type Outcome = Schemas["Outcome"];
export type ProcessInfo = Full<Schemas["ProcessReply"]>;
export type SessionInfo = Full<Schemas["SessionInfo"]>;
export type TerminalInfo = Full<Schemas["TerminalInfo"]>;
export type CodeContextInfo = Full<Schemas["CodeContextInfo"]>;
export type Execution = Full<Schemas["Execution"]>;
export type Result = Full<Schemas["Result"]>;
export type FileInfo = Full<Schemas["FileInfo"]>;
export type FileChange = Full<Schemas["FileChange"]>;
export type ExposedPort = Full<Schemas["ExposedPort"]>;
export type SnapshotInfo = Full<Schemas["SnapshotInfo"]>;
export type ImageInfo = Full<Schemas["ImageInfo"]>;
export type VolumeInfo = Full<Schemas["VolumeInfo"]>;
export type Quota = Schemas["Quota"];
export type ApiKeyInfo = Omit<Full<Schemas["ApiKeyInfo"]>, "quota"> & { quota: Quota };

export type CodeEvent = Full<Schemas["Text"] | Schemas["Display"] | Schemas["Failure"] | Schemas["Done"]>;

/** Bytes of one stream; a reader that returns with `cursor` continues right after them. */
export interface Output {
  readonly type: "output";
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
  readonly cursor: string;
}
export type Gap = Full<Schemas["Gap"]>;
export type Exit = Full<Schemas["Exit"]>;
/** What was kept from before has been shown; what follows is live. */
export interface Ready {
  readonly type: "ready";
  readonly cursor: string;
}
export type LogEvent = Output | Gap | Exit;
export type TerminalEvent = Output | Gap | Exit | Ready;

/** What a command did; its output is text, with U+FFFD for bytes that are no UTF-8. */
export interface ExecResult {
  readonly outcome: Outcome;
  readonly exitCode: number | null;
  readonly signal: number | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly stdoutBytes: Uint8Array;
  readonly stderrBytes: Uint8Array;
  readonly duration: number;
  readonly truncated: boolean;
}
