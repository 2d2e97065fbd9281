/** Log in with a key. */

import { useState } from "preact/hooks";

import { Mark } from "./mark";
import { logIn } from "./session";

export function LoginPage() {
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      await logIn(String(new FormData(event.currentTarget as HTMLFormElement).get("key") ?? "").trim());
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setBusy(false);
    }
  };
  return (
    <main class="login">
      <form onSubmit={submit}>
        <h1 class="brand">
          <Mark /> Cove
        </h1>
        <label>
          API key
          <input name="key" type="password" autocomplete="current-password" autoFocus aria-describedby="login-help" />
        </label>
        <p id="login-help" class="quiet">
          The server wrote its key to the file <code>key</code> in its state directory.
        </p>
        {problem !== "" && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <button class="primary" type="submit" disabled={isBusy}>
          Log in
        </button>
      </form>
    </main>
  );
}
