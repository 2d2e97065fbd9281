/** Stop, start, snapshot, fork and destroy a sandbox. */

import { type SandboxStatus } from "cove-client";

import { confirmed, entered } from "./dialog";
import { attempt } from "./notice";
import { sandboxLink } from "./route";
import { clientOf } from "./session";

interface Props {
  readonly id: string;
  readonly owner: string | null;
  readonly status: SandboxStatus;
  readonly isShort?: boolean;
}

export function LifeActions({ id, owner, status, isShort = false }: Props) {
  const sandbox = clientOf(owner).sandbox(id);
  const isRunning = status === "running";
  const snapshot = async (): Promise<void> => {
    const name = await entered(`Snapshot of ${id}`, "Take snapshot", "Name (optional)");
    if (name !== null) await attempt(() => sandbox.snapshot(name === "" ? undefined : name), `Snapshot of ${id} taken`);
  };
  const fork = async (): Promise<void> => {
    await attempt(async () => {
      const [copy] = await sandbox.fork();
      if (copy !== undefined) location.hash = sandboxLink(copy.id, owner);
    }, `Forked ${id}`);
  };
  const destroy = async (): Promise<void> => {
    if (!(await confirmed(`Destroy ${id} and all its files?`, "Destroy"))) return;
    if ((await attempt(() => sandbox.destroy(), `${id} is destroyed`)) && !isShort) location.hash = "#/sandboxes";
  };
  return (
    <span class={isShort ? "acts short" : "acts"}>
      {isRunning ? (
        <button onClick={() => attempt(() => sandbox.stop())} aria-label={`Stop ${id}`}>
          Stop
        </button>
      ) : (
        <button onClick={() => attempt(() => sandbox.start())} aria-label={`Start ${id}`}>
          Start
        </button>
      )}
      <button onClick={snapshot} disabled={!isRunning} aria-label={`Snapshot ${id}`}>
        Snapshot
      </button>
      <button onClick={fork} disabled={!isRunning} aria-label={`Fork ${id}`}>
        Fork
      </button>
      <button class="danger" onClick={destroy} aria-label={`Destroy ${id}`}>
        Destroy
      </button>
    </span>
  );
}
