/** The client against a real server, whose address and key are in the environment. */

import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";

import { Cove, CoveError, type Sandbox } from "../src/index.js";
import { cuttingProxy } from "./cutting_proxy.js";

const url = process.env["COVE_URL"] ?? "http://127.0.0.1:8787";
const apiKey = process.env["COVE_API_KEY"] ?? "";
const cove = new Cove({ url, apiKey });
const decoder = new TextDecoder();

function through(proxy: { url: string }, id: string): Sandbox {
  return new Cove({ url: proxy.url, apiKey }).sandbox(id);
}

describe("a sandbox", () => {
  let sandbox: Sandbox;

  before(async () => {
    sandbox = await cove.create({ spec: { labels: { made_by: "typescript" } } });
  });
  after(() => sandbox.destroy());

  it("is listed with its labels", async () => {
    const found = (await cove.list()).find((each) => each.id === sandbox.id);
    assert.deepEqual(found?.spec.labels, { made_by: "typescript" });
  });

  it("runs commands, whose failure is a result", async () => {
    const result = await sandbox.exec("printf 'a\\377'; echo b >&2; exit 3");
    assert.equal(result.exitCode, 3);
    assert.deepEqual([...result.stdoutBytes], [97, 255]);
    assert.equal(result.stderr, "b\n");
  });

  it("says errors with their code", async () => {
    await assert.rejects(sandbox.files.read("/nothing"), { code: "FILE_NOT_FOUND", status: 404 });
    await assert.rejects(new Cove({ url, apiKey: "wrong-key-1" }).list(), (error) => error instanceof CoveError && error.status === 401);
  });

  it("keeps files as they were written", async () => {
    const content = Uint8Array.from({ length: 70_000 }, (_, index) => index % 256);
    await sandbox.files.mkdir("a dir/é");
    await sandbox.files.write("a dir/é/x & y", content);
    assert.deepEqual(await sandbox.files.read("a dir/é/x & y"), content);
    assert.deepEqual((await sandbox.files.list("a dir/é")).map((each) => each.name), ["x & y"]);
    assert.match(await sandbox.files.diff(), /x & y/);
  });

  it("keeps the state of a session", async () => {
    const session = await sandbox.createSession();
    await session.exec("cd /tmp && export WORD=kept");
    assert.equal((await session.exec("echo $WORD in $PWD")).stdout, "kept in /tmp\n");
    assert.equal(await session.cwd(), "/tmp");
    await session.delete();
  });

  it("streams code with its results", async () => {
    const context = await sandbox.code.create("python");
    const seen: string[] = [];
    for await (const event of sandbox.code.stream(context.id, "print('text')\n1 + 1")) {
      seen.push(event.type === "display" ? String(event.result.data["text/plain"]) : event.type);
    }
    assert.deepEqual(seen, ["text", "2", "done"]);
    assert.equal((await sandbox.code.run(context.id, "1 / 0")).error?.name, "ZeroDivisionError");
  });

  it("ends a stream when its reader leaves", async () => {
    const process = await sandbox.startProcess("echo first; sleep 60");
    for await (const event of process.logs()) if (event.type === "output") break;
    await process.kill();
    assert.equal((await sandbox.process(process.id)).info.status, "killed");
  });

  it("gives every byte of a log once, however often the connection breaks", async () => {
    const process = await sandbox.startProcess("seq 1 60000");
    const proxy = await cuttingProxy(url, [700, 5_000, 100_000]);
    const read: Uint8Array[] = [];
    const same = await through(proxy, sandbox.id).process(process.id);
    for await (const event of same.logs()) {
      if (event.type === "output") read.push(event.data);
    }
    proxy.close();
    const expected = Array.from({ length: 60_000 }, (_, index) => `${index + 1}\n`).join("");
    assert.ok(Buffer.concat(read).toString() === expected, "lines are lost or doubled");
    assert.ok(proxy.cuts() >= 2);
  });

  it("shows a terminal's bytes once, however often the connection breaks", async () => {
    const { id } = await sandbox.openTerminal({ id: "cut", shell: ["/bin/sh", "-c", "stty -onlcr; read x; seq 1 20000; exit 5"] });
    const proxy = await cuttingProxy(url, [4_000, 30_000]);
    const viewer = through(proxy, sandbox.id).connectTerminal(id);
    let text = "";
    let isTyped = false;
    for await (const event of viewer.events()) {
      if (event.type === "output") text += decoder.decode(event.data, { stream: true });
      if (event.type === "exit") assert.equal(event.exit_code, 5);
      if (event.type === "ready" && !isTyped) {
        isTyped = true;
        viewer.write("go\n");
      }
    }
    proxy.close();
    const expected = Array.from({ length: 20_000 }, (_, index) => `${index + 1}\n`).join("");
    assert.ok(text.endsWith(expected) && text.length < expected.length + 10, "bytes are lost or doubled");
    assert.equal(proxy.cuts(), 2);
  });

  it("shares a terminal between viewers", async () => {
    const { id } = await sandbox.openTerminal({ id: "shared", shell: ["/bin/cat"] });
    const viewers = [sandbox.connectTerminal(id), sandbox.connectTerminal(id)];
    const seen = viewers.map(async (viewer) => {
      let text = "";
      for await (const event of viewer.events()) {
        if (event.type === "ready" && viewer === viewers[0]) viewer.write("hello\n");
        if (event.type === "output") text += decoder.decode(event.data);
        if (text.split("hello").length === 3) viewer.close();
      }
      return text.replaceAll("\r", "");
    });
    assert.deepEqual(await Promise.all(seen), ["hello\nhello\n", "hello\nhello\n"]);
  });

  it("says why a terminal cannot be viewed", async () => {
    const viewer = sandbox.connectTerminal("nothing");
    await assert.rejects(viewer.events().next(), { code: "TERMINAL_NOT_FOUND" });
  });

  it("writes down what was done", async () => {
    const kinds = [];
    for await (const event of sandbox.journal()) kinds.push(event.kind);
    assert.ok(kinds.includes("created") && kinds.includes("exec"));
  });
});
