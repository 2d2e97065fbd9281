/** The page that is shown, in the address behind `#`. */

import { signal } from "@preact/signals";

export interface Route {
  readonly page: "sandboxes" | "sandbox" | "server";
  readonly id: string;
  readonly tab: string;
  readonly owner: string | null;
}

export const route = signal(parse(location.hash));
addEventListener("hashchange", () => (route.value = parse(location.hash)));

function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [page, id = "", tab = ""] = path.split("/").map(decodeURIComponent);
  const owner = new URLSearchParams(query).get("owner");
  if (page === "server") return { page, id: "", tab: id, owner };
  return { page: page === "sandboxes" && id !== "" ? "sandbox" : "sandboxes", id, tab, owner };
}

/** The address of a sandbox, or of one of its tabs. */
export function sandboxLink(id: string, owner: string | null, tab = ""): string {
  const query = owner === null ? "" : `?owner=${encodeURIComponent(owner)}`;
  return `#/sandboxes/${encodeURIComponent(id)}${tab === "" ? "" : `/${tab}`}${query}`;
}
