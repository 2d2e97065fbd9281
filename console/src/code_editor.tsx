/** An editor of code as a part of a page. */

import { useEffect, useRef } from "preact/hooks";

import type { Editor } from "./editor";

interface Props {
  readonly path: string;
  readonly text: string;
  readonly label: string;
  readonly onChange: (text: string) => void;
  readonly onSave?: () => void;
  readonly onRun?: () => void;
}

export function CodeEditor(props: Props) {
  const element = useRef<HTMLDivElement>(null);
  const current = useRef(props);
  current.current = props;
  useEffect(() => {
    let editor: Editor | null = null;
    let isOver = false;
    const open = async (): Promise<void> => {
      const { openEditor } = await import("./editor");
      if (isOver || element.current === null) return;
      const { path, text, label, onSave, onRun } = current.current;
      editor = openEditor(element.current, {
        path,
        text,
        label,
        onChange: (changed) => current.current.onChange(changed),
        onSave: onSave === undefined ? undefined : () => current.current.onSave?.(),
        onRun: onRun === undefined ? undefined : () => current.current.onRun?.(),
      });
    };
    void open();
    return () => {
      isOver = true;
      editor?.destroy();
    };
  }, [props.path]);
  return <div class="editor" ref={element} />;
}
