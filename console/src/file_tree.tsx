/** Directories that open when they are chosen. */

import { type FileInfo, type Sandbox } from "cove-client";
import { useState } from "preact/hooks";

import { bytes } from "./format";
import { useAsked } from "./live";

const MOST_ENTRIES = 1000;

interface Props {
  readonly sandbox: Sandbox;
  readonly path: string;
  readonly version: number;
  readonly chosen: string | null;
  readonly onFile: (file: FileInfo) => void;
  readonly onDirectory: (path: string) => void;
  readonly isOpen?: boolean;
}

export function FileTree(props: Props) {
  const { path, onDirectory } = props;
  const [isOpen, setOpen] = useState(props.isOpen ?? false);
  const toggle = (): void => {
    setOpen(!isOpen);
    onDirectory(path);
  };
  const name = path === "/" ? "/" : (path.split("/").at(-1) ?? path);
  return (
    <div class="branch">
      <button class="plain leaf" aria-expanded={isOpen} onClick={toggle} data-directory={path}>
        <span aria-hidden="true">{isOpen ? "▾" : "▸"}</span> {name}
      </button>
      {isOpen && <Entries {...props} />}
    </div>
  );
}

function Entries(props: Props) {
  const { sandbox, path, version, chosen, onFile } = props;
  const { value, problem } = useAsked(() => sandbox.files.list(path, { hidden: true }), [sandbox, path, version]);
  const entries = [...(value ?? [])].sort(directoriesFirst);
  return (
    <ul>
      {problem !== "" && <li class="problem">{problem}</li>}
      {entries.slice(0, MOST_ENTRIES).map((entry) => {
        const full = path === "/" ? `/${entry.name}` : `${path}/${entry.name}`;
        return (
          <li key={entry.name}>
            {entry.kind === "directory" ? (
              <FileTree {...props} path={full} isOpen={false} />
            ) : (
              <button
                class={full === chosen ? "plain leaf on" : "plain leaf"}
                aria-pressed={full === chosen}
                data-file={full}
                title={bytes(entry.size)}
                onClick={() => onFile({ ...entry, path: full })}
              >
                {entry.name}
                {entry.kind === "symlink" && <span class="quiet"> → {entry.target}</span>}
              </button>
            )}
          </li>
        );
      })}
      {entries.length > MOST_ENTRIES && <li class="quiet">and {entries.length - MOST_ENTRIES} more</li>}
    </ul>
  );
}

function directoriesFirst(one: FileInfo, other: FileInfo): number {
  const isFirst = Number(other.kind === "directory") - Number(one.kind === "directory");
  return isFirst !== 0 ? isFirst : one.name.localeCompare(other.name);
}
