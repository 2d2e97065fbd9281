// Bundle the console into the server's package. Exits with an error when the first page is too large.

import { build } from "esbuild";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const MOST_BYTES = 250 * 1024;
const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../src/cove/server/console/static");
const assets = join(target, "assets");

await rm(target, { recursive: true, force: true });
await mkdir(assets, { recursive: true });
const { metafile } = await build({
  absWorkingDir: here,
  entryPoints: { main: "src/main.tsx", style: "src/style.css" },
  outdir: assets,
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  bundle: true,
  minify: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  alias: { "cove-client": "../clients/typescript/src/index.ts" },
  legalComments: "none",
  metafile: true,
});

const outputs = Object.entries(metafile.outputs).map(([path, output]) => ({ name: path.split("/").at(-1), path, ...output }));
const find = (entry) => outputs.find((output) => output.entryPoint === entry);
const [script, style] = [find("src/main.tsx"), find("src/style.css")];
const page = (await readFile(join(here, "index.html"), "utf8"))
  .replace("MAIN_SCRIPT", `/console/assets/${script.name}`)
  .replace("MAIN_STYLE", `/console/assets/${style.name}`);
await writeFile(join(target, "index.html"), page);

const first = new Set([style.path]);
const follow = (path) => {
  if (first.has(path)) return;
  first.add(path);
  for (const { path: next, kind } of metafile.outputs[path].imports) if (kind === "import-statement") follow(next);
};
follow(script.path);
const packed = async (path) => gzipSync(await readFile(join(here, path))).length;
const sizes = await Promise.all([...first].map(packed));
const total = sizes.reduce((sum, size) => sum + size, 0);
console.log(`first page: ${(total / 1024).toFixed(1)} KiB compressed, of at most ${MOST_BYTES / 1024}`);
if (total > MOST_BYTES) process.exit(1);
