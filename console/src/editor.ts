/** CodeMirror, loaded when it is first needed. */

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { css } from "@codemirror/lang-css";
import { html } from "@codemirror/lang-html";
import { javascript } from "@codemirror/lang-javascript";
import { json } from "@codemirror/lang-json";
import { markdown } from "@codemirror/lang-markdown";
import { python } from "@codemirror/lang-python";
import { bracketMatching, defaultHighlightStyle, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

import { theme } from "./theme";

export interface Editor {
  readonly text: string;
  focus(): void;
  destroy(): void;
}

interface Options {
  readonly path: string;
  readonly text: string;
  readonly label: string;
  readonly onChange: (text: string) => void;
  readonly onSave?: (() => void) | undefined;
  readonly onRun?: (() => void) | undefined;
}

const LANGUAGES: readonly [RegExp, () => Extension][] = [
  [/\.pyi?$/, python],
  [/\.(jsx?|mjs|cjs)$/, () => javascript({ jsx: true })],
  [/\.(tsx?|mts)$/, () => javascript({ jsx: true, typescript: true })],
  [/\.(json|ipynb)$/, json],
  [/\.(md|markdown)$/, markdown],
  [/\.html?$/, html],
  [/\.css$/, css],
];

const DARK = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword], color: "#8fb8f0" },
  { tag: [tags.string, tags.special(tags.string)], color: "#9ccf9c" },
  { tag: [tags.number, tags.bool, tags.null], color: "#e0b37a" },
  { tag: tags.comment, color: "#8595a5", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.definition(tags.variableName)], color: "#d3c28a" },
  { tag: [tags.className, tags.typeName, tags.tagName], color: "#7fd0cf" },
  { tag: [tags.propertyName, tags.attributeName], color: "#c4b5ec" },
  { tag: tags.heading, fontWeight: "bold" },
  { tag: tags.link, textDecoration: "underline" },
]);

export function openEditor(parent: HTMLElement, { path, text, label, onChange, onSave, onRun }: Options): Editor {
  const isDark = theme.peek() === "dark";
  const act = (work: (() => void) | undefined) => () => {
    work?.();
    return work !== undefined;
  };
  const language = LANGUAGES.find(([pattern]) => pattern.test(path))?.[1]() ?? [];
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        keymap.of([{ key: "Mod-s", run: act(onSave) }, { key: "Mod-Enter", run: act(onRun) }]),
        ...[lineNumbers(), history(), drawSelection(), indentOnInput(), bracketMatching(), highlightActiveLine(), highlightSelectionMatches()],
        syntaxHighlighting(isDark ? DARK : defaultHighlightStyle),
        keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap, indentWithTab]),
        EditorView.contentAttributes.of({ "aria-label": label }),
        EditorView.updateListener.of((update) => update.docChanged && onChange(update.state.doc.toString())),
        EditorView.theme({}, { dark: isDark }),
        language,
      ],
    }),
  });
  return {
    get text() {
      return view.state.doc.toString();
    },
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}
