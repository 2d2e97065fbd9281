// Try what a hostile page would: reach the API, the cookie, the parent. Answers what came of each try.
async function attack(api) {
  const socket = api.replace("http", "ws");
  const tries = {
    read: async () => (await fetch(api + "/v1/sandboxes", { credentials: "include", headers: { "cove-console": "1" } })).status,
    simple: async () => (await fetch(api + "/v1/sandboxes", { credentials: "include" })).status,
    blind: async () => (await fetch(api + "/v1/sandboxes", { method: "POST", mode: "no-cors", credentials: "include", body: "{}" })).type,
    logout: async () => (await fetch(api + "/console/logout", { method: "POST", mode: "no-cors", credentials: "include" })).type,
    session: async () => (await fetch(api + "/console/session", { credentials: "include" })).status,
    request: () =>
      new Promise((resolve, reject) => {
        const request = new XMLHttpRequest();
        request.open("GET", api + "/v1/sandboxes");
        request.withCredentials = true;
        request.onload = () => resolve(request.status);
        request.onerror = () => reject(new Error("refused"));
        request.send();
      }),
    socket: () =>
      new Promise((resolve, reject) => {
        const opened = new WebSocket(socket + "/v1/sandboxes/victim/terminals/main/connect");
        opened.onopen = () => resolve("open");
        opened.onerror = () => reject(new Error("refused"));
      }),
    cookie: async () => document.cookie || Promise.reject(new Error("empty")),
    parent: async () => parent !== window && parent.document.title,
    storage: async () => parent !== window && parent.localStorage.length,
    top: async () => (top !== window ? (top.location.href = "about:blank#taken") : Promise.reject(new Error("alone"))),
    frame: () =>
      new Promise((resolve, reject) => {
        const frame = document.createElement("iframe");
        frame.src = api + "/";
        frame.onload = () => {
          try {
            resolve(frame.contentWindow.document.title);
          } catch (error) {
            reject(error);
          }
        };
        document.body.append(frame);
        setTimeout(() => reject(new Error("blocked")), 3000);
      }),
  };
  const found = {};
  for (const [name, attempt] of Object.entries(tries)) {
    try {
      found[name] = await attempt();
    } catch (error) {
      found[name] = "refused";
    }
  }
  return found;
}
