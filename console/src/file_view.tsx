/** One file: its text to edit, or what it is; download, rename and remove. */

import { type FileInfo, type Sandbox } from "cove-client";
import { useEffect, useState } from "preact/hooks";

import { CodeEditor } from "./code_editor";
import { confirmed } from "./dialog";
import { bytes, moment } from "./format";
import { attempt } from "./notice";
import { download } from "./upload";

const MOST_EDITED = 2 << 20;

interface Props {
  readonly sandbox: Sandbox;
  readonly file: FileInfo;
  readonly onChange: () => void;
  readonly onRemoved: () => void;
}

export function FileView({ sandbox, file, onChange, onRemoved }: Props) {
  const [saved, setSaved] = useState<string | null>(null);
  const [text, setText] = useState("");
  const [why, setWhy] = useState("");
  useEffect(() => {
    const load = async (): Promise<void> => {
      if (file.kind === "other") return setWhy("This is no regular file.");
      if (file.size > MOST_EDITED) return setWhy(`The file is too large to edit here: ${bytes(file.size)}.`);
      const content = await sandbox.files.read(file.path);
      if (content.includes(0)) return setWhy("The file is binary.");
      const decoded = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content);
      setSaved(decoded);
      setText(decoded);
    };
    load().catch((error: unknown) => setWhy(error instanceof TypeError ? "The file is no UTF-8 text." : String(error)));
  }, [file.path]);
  const save = (): Promise<boolean> =>
    attempt(async () => {
      await sandbox.files.write(file.path, text);
      setSaved(text);
      onChange();
    }, `${file.name} is saved`);
  const remove = async (): Promise<void> => {
    if (!(await confirmed(`Remove ${file.path}?`, "Remove"))) return;
    if (await attempt(() => sandbox.files.remove(file.path).then(onChange))) onRemoved();
  };
  return (
    <div class="file" data-editor={file.path}>
      <div class="screen-bar">
        <code class="cut grow">{file.path}</code>
        <span class="quiet">
          {bytes(file.size)}, {moment(file.modified_at)}
        </span>
        <button class="primary" data-action="save" disabled={saved === null || saved === text} onClick={save}>
          Save
        </button>
        <button onClick={() => attempt(() => download(sandbox, file))}>Download</button>
        <button class="danger" onClick={remove}>
          Remove
        </button>
      </div>
      {why !== "" && <p class="empty">{why}</p>}
      {saved !== null && <CodeEditor path={file.path} text={saved} label={`Content of ${file.name}`} onChange={setText} onSave={save} />}
    </div>
  );
}
