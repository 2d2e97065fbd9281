/** Start the console. */

import { render } from "preact";

import { App } from "./app";
import { say } from "./notice";
import { findSession } from "./session";

const root = document.getElementById("app");
if (root !== null) render(<App />, root);
findSession().catch((error: unknown) => say(error instanceof Error ? error.message : String(error), true));
