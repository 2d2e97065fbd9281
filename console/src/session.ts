/** Who is logged in, and the clients that speak for them. */

import { signal } from "@preact/signals";
import { Cove, CoveError } from "cove-client";

export interface Session {
  readonly name: string;
  readonly tenant: string | null;
  readonly is_admin: boolean;
  readonly expires_at: string | null;
  readonly version: string;
  readonly is_cluster: boolean;
}

/** `undefined` until it is known; `null` for who has to log in. */
export const session = signal<Session | null | undefined>(undefined);

const MARK = { "cove-console": "1" };
const clients = new Map<string, Cove>();

/** The client for the sandboxes of an owner; admins see those of others. */
export function clientOf(owner: string | null): Cove {
  const tenant = owner !== null && owner !== session.peek()?.tenant ? { "cove-tenant": owner } : {};
  const key = owner ?? "";
  const found = clients.get(key);
  if (found !== undefined) return found;
  const made = new Cove({ headers: { ...MARK, ...tenant }, socketQuery: tenant, patience: Infinity, onError: leaveIfRefused });
  clients.set(key, made);
  return made;
}

/** The client for the server itself. */
export function ownClient(): Cove {
  return clientOf(null);
}

export async function findSession(): Promise<void> {
  try {
    const response = await ownClient().transport.fetch("/console/session", { method: "GET", accept: "application/json" });
    session.value = (await response.json()) as Session;
  } catch (error) {
    if (!(error instanceof CoveError) || error.status !== 401) throw error;
    session.value = null;
  }
}

/** Log in, or throw the error that says why not. */
export async function logIn(key: string): Promise<void> {
  await ownClient().transport.fetch("/console/login", { method: "POST", accept: "application/json", body: { key } });
  clients.clear();
  await findSession();
}

export async function logOut(): Promise<void> {
  await ownClient().transport.fetch("/console/logout", { method: "POST", accept: "application/json" });
  clients.clear();
  session.value = null;
}

function leaveIfRefused(error: CoveError): void {
  if (error.status === 401) session.value = null;
}
