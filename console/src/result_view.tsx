/** One event of a code cell: text, a rich result, or an error. */

import { type CodeEvent, type Result } from "cove-client";

import { HtmlFrame } from "./html_frame";

const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const MOST_ROWS = 200;

export function ResultView({ event }: { readonly event: CodeEvent }) {
  switch (event.type) {
    case "text":
      return (
        <pre class={event.stream === "stderr" ? "output problem" : "output"} tabIndex={0}>
          {event.text}
        </pre>
      );
    case "display":
      return <Rich result={event.result} />;
    case "failure":
      return (
        <pre class="output failure" role="alert" tabIndex={0}>
          {plain(event.error.traceback === "" ? `${event.error.name}: ${event.error.message}` : event.error.traceback)}
        </pre>
      );
    case "done":
      return event.outcome === "exited" ? null : <p class="problem">{event.outcome}</p>;
  }
}

function Rich({ result: { data } }: { readonly result: Result }) {
  const image = IMAGES.find((type) => typeof data[type] === "string");
  if (image !== undefined) return <img class="figure" alt="Result" src={`data:${image};base64,${String(data[image])}`} />;
  if (typeof data["image/svg+xml"] === "string") return <img class="figure" alt="Result" src={svgAddress(data["image/svg+xml"])} />;
  if (typeof data["text/html"] === "string") return <HtmlFrame html={data["text/html"]} />;
  const json = data["application/json"];
  if (isTable(json)) return <Table rows={json} />;
  const text = data["text/plain"] ?? (json === undefined ? "" : JSON.stringify(json, null, 2));
  return (
    <pre class="output" tabIndex={0}>
      {String(text)}
    </pre>
  );
}

function svgAddress(svg: string): string {
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

type Rows = readonly Readonly<Record<string, unknown>>[];

function isTable(value: unknown): value is Rows {
  return Array.isArray(value) && value.length > 0 && value.every((row) => typeof row === "object" && row !== null && !Array.isArray(row));
}

function Table({ rows }: { readonly rows: Rows }) {
  const heads = [...new Set(rows.slice(0, MOST_ROWS).flatMap((row) => Object.keys(row)))].slice(0, 50);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>
            {heads.map((head) => (
              <th key={head}>{head}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, MOST_ROWS).map((row, index) => (
            <tr key={index}>
              {heads.map((head) => (
                <td key={head}>{String(row[head] ?? "")}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Text without the colours of a terminal. */
function plain(text: string): string {
  return text.replace(/\u001b\[[0-9;]*m/g, "");
}
