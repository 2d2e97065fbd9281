/** Files of a sandbox: a tree, an editor, and what differs from a snapshot. */

import { type FileInfo } from "cove-client";
import { useState } from "preact/hooks";

import { DiffView } from "./diff_view";
import { entered } from "./dialog";
import { FileTree } from "./file_tree";
import { FileView } from "./file_view";
import { useAsked } from "./live";
import { attempt } from "./notice";
import { type TabProps } from "./sandbox_page";
import { Uploads, upload } from "./upload";

export function FilesTab({ sandbox }: TabProps) {
  const info = useAsked(() => sandbox.info(), [sandbox]).value;
  const [file, setFile] = useState<FileInfo | null>(null);
  const [directory, setDirectory] = useState<string | null>(null);
  const [version, setVersion] = useState(0);
  const [isDiff, setDiff] = useState(false);
  const [isOver, setOver] = useState(false);
  if (info === null) return null;
  const root = info.spec.workdir;
  const target = directory ?? root;
  const refresh = (): void => setVersion((number) => number + 1);
  const send = (files: FileList | null | undefined): void => {
    for (const each of files ?? []) void upload(sandbox, `${target}/${each.name}`, each).then(refresh);
  };
  const create = async (): Promise<void> => {
    const name = await entered(`New file in ${target}`, "Create", "Name");
    if (name !== null && name !== "") await attempt(() => sandbox.files.write(`${target}/${name}`, "").then(refresh));
  };
  const drop = (event: DragEvent): void => {
    event.preventDefault();
    setOver(false);
    send(event.dataTransfer?.files);
  };
  const dragOver = (event: DragEvent): void => {
    event.preventDefault();
    setOver(true);
  };
  return (
    <div class="fill">
      <div class="subtabs">
        <button onClick={create}>New file</button>
        <label class="button">
          Upload
          <input type="file" multiple class="hidden-file" onChange={(event) => send(event.currentTarget.files)} />
        </label>
        <button onClick={refresh}>Refresh</button>
        <button aria-pressed={isDiff} onClick={() => setDiff(!isDiff)}>
          Changes
        </button>
        <span class="quiet cut">into {target}</span>
        <Uploads />
      </div>
      <div class={isOver ? "two drop" : "two"} onDragOver={dragOver} onDragLeave={() => setOver(false)} onDrop={drop}>
        <nav class="tree" aria-label="Files">
          <FileTree sandbox={sandbox} path={root} version={version} chosen={file?.path ?? null} onFile={setFile} onDirectory={setDirectory} isOpen />
          {root !== "/" && <FileTree sandbox={sandbox} path="/" version={version} chosen={file?.path ?? null} onFile={setFile} onDirectory={setDirectory} />}
        </nav>
        {isDiff && <DiffView sandbox={sandbox} version={version} />}
        {!isDiff && file === null && <p class="empty">Choose a file. Drop files here to upload them.</p>}
        {!isDiff && file !== null && <FileView key={file.path} sandbox={sandbox} file={file} onChange={refresh} onRemoved={() => setFile(null)} />}
      </div>
    </div>
  );
}
