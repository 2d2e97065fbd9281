/** The frame of every page: header, navigation, and what is asked and said. */

import { useEffect } from "preact/hooks";

import { Questions } from "./dialog";
import { fleet, followFleet, isConnected } from "./fleet";
import { LoginPage } from "./login_page";
import { Mark } from "./mark";
import { attempt, Notices } from "./notice";
import { route } from "./route";
import { SandboxList } from "./sandbox_list";
import { SandboxPage } from "./sandbox_page";
import { ServerPage } from "./server_page";
import { logOut, session } from "./session";
import { switchTheme, theme } from "./theme";

export function App() {
  return (
    <>
      {session.value === null && <LoginPage />}
      {session.value !== null && session.value !== undefined && <Console />}
      <Questions />
      <Notices />
    </>
  );
}

function Console() {
  useEffect(() => {
    const ending = new AbortController();
    void followFleet(ending.signal);
    return () => ending.abort();
  }, []);
  const { page, id, owner } = route.value;
  return (
    <>
      <Header />
      <main id="content">
        {page === "sandboxes" && <SandboxList />}
        {page === "sandbox" && <SandboxPage key={`${owner ?? ""}/${id}`} id={id} owner={owner} />}
        {page === "server" && <ServerPage />}
      </main>
    </>
  );
}

function Header() {
  const { page } = route.value;
  const other = theme.value === "dark" ? "light" : "dark";
  return (
    <header class="top">
      <a class="skip" href="#content" onClick={skip}>
        Skip to content
      </a>
      <a class="brand" href="#/sandboxes">
        <Mark /> Cove
      </a>
      <nav aria-label="Main">
        <a href="#/sandboxes" aria-current={page === "server" ? undefined : "page"}>
          Sandboxes <span class="count">{fleet.value.size}</span>
        </a>
        <a href="#/server" aria-current={page === "server" ? "page" : undefined}>
          Server
        </a>
      </nav>
      <span class={isConnected.value ? "live on" : "live"} role="status">
        {isConnected.value ? "live" : "connecting…"}
      </span>
      <span class="who" title="The key you are logged in with">
        {session.value?.name}
      </span>
      <button class="plain" onClick={switchTheme} aria-label={`Use the ${other} theme`} title={`Use the ${other} theme`}>
        {other === "dark" ? "☾" : "☀"}
      </button>
      <button class="plain" onClick={() => attempt(logOut)}>
        Log out
      </button>
    </header>
  );
}

function skip(event: MouseEvent): void {
  event.preventDefault();
  const content = document.getElementById("content");
  content?.setAttribute("tabindex", "-1");
  content?.focus();
}
