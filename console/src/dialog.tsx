/** Modal dialogs, by the browser's own element. */

import { signal } from "@preact/signals";
import { type ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Props {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (element.current?.open === false) element.current.showModal();
  }, []);
  return (
    <dialog ref={element} onClose={onClose} aria-label={title}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

interface Question {
  readonly text: string;
  readonly verb: string;
  readonly field: string | null;
  readonly answer: (value: string | null) => void;
}

const question = signal<Question | null>(null);

/** Ask before something that cannot be taken back. */
export async function confirmed(text: string, verb: string): Promise<boolean> {
  return (await ask(text, verb, null)) !== null;
}

/** Ask for one line of text; `null` when it was cancelled. */
export async function entered(text: string, verb: string, field: string): Promise<string | null> {
  return ask(text, verb, field);
}

function ask(text: string, verb: string, field: string | null): Promise<string | null> {
  return new Promise((answer) => (question.value = { text, verb, field, answer }));
}

/** Shows the question that is asked, if there is one. */
export function Questions() {
  const asked = question.value;
  if (asked === null) return null;
  const close = (value: string | null): void => {
    question.value = null;
    asked.answer(value);
  };
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    close(String(new FormData(event.currentTarget as HTMLFormElement).get("value") ?? ""));
  };
  return (
    <Dialog title={asked.text} onClose={() => close(null)}>
      <form onSubmit={submit}>
        {asked.field !== null && (
          <label>
            {asked.field}
            <input name="value" autocomplete="off" autoFocus />
          </label>
        )}
        <div class="actions">
          <button type="button" onClick={() => close(null)}>
            Cancel
          </button>
          <button class="primary" type="submit">
            {asked.verb}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
