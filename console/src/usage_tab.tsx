/** Limits of a sandbox, and what it uses over time. */

import { type SandboxInfo, type Usage } from "cove-client";
import { useEffect, useState } from "preact/hooks";

import { bytes, moment } from "./format";
import { useAsked } from "./live";
import { type TabProps } from "./sandbox_page";

const PAUSE = 2000;
const SAMPLES = 300;
const LEAST_SAMPLES = 30;
const [WIDTH, HEIGHT] = [300, 80];

interface Sample {
  readonly at: number;
  readonly usage: Usage;
}

export function UsageTab({ sandbox }: TabProps) {
  const info = useAsked(() => sandbox.info(), [sandbox], 10_000).value;
  const { value, problem } = useAsked(() => sandbox.usage(), [sandbox], PAUSE);
  const [samples, setSamples] = useState<readonly Sample[]>([]);
  useEffect(() => {
    if (value !== null) setSamples((all) => [...all, { at: performance.now(), usage: value }].slice(-SAMPLES));
  }, [value]);
  return (
    <div class="usage">
      {problem !== "" && <p class="problem">{problem}</p>}
      <div class="charts">
        <Chart title="Memory" kind="memory" unit={bytes} points={samples.map(({ usage }) => usage.memory_bytes ?? 0)} limit={info?.spec.limits.memory} />
        <Chart title="Processors" kind="cpus" unit={(value) => value.toFixed(2)} points={rates(samples, (usage) => usage.cpu_seconds)} limit={info?.spec.limits.cpus} />
        <Chart title="Received per second" kind="network" unit={bytes} points={rates(samples, (usage) => usage.network_received_bytes)} />
        <Chart title="Sent per second" kind="network" unit={bytes} points={rates(samples, (usage) => usage.network_sent_bytes)} />
      </div>
      {info !== null && (
        <section class="things" aria-label="Limits">
          <h2>Limits</h2>
          {info.warnings.map((warning) => (
            <p key={warning} class="warning">
              {warning}
            </p>
          ))}
          <Facts info={info} usage={value} />
        </section>
      )}
    </div>
  );
}

function rates(samples: readonly Sample[], of: (usage: Usage) => number | null): number[] {
  return samples.slice(1).map(({ at, usage }, index) => {
    const before = samples[index] as Sample;
    return Math.max(0, (of(usage) ?? 0) - (of(before.usage) ?? 0)) / Math.max(0.001, (at - before.at) / 1000);
  });
}

interface ChartProps {
  readonly title: string;
  readonly kind: "memory" | "cpus" | "network";
  readonly unit: (value: number) => string;
  readonly points: readonly number[];
  readonly limit?: number | null | undefined;
}

/** The newest sample is at the right edge, and the top is a little above the highest. */
function Chart({ title, kind, unit, points, limit }: ChartProps) {
  const top = Math.max(...points, 1e-9) * 1.15;
  const step = WIDTH / (Math.max(points.length, LEAST_SAMPLES) - 1);
  const at = (index: number): string => (WIDTH - (points.length - 1 - index) * step).toFixed(1);
  const line = points.map((value, index) => `${at(index)},${(HEIGHT - (value / top) * (HEIGHT - 2)).toFixed(1)}`);
  const now = unit(points.at(-1) ?? 0);
  return (
    <figure class={`chart ${kind}`}>
      <figcaption>
        <span>{title}</span>
        <strong>{now}</strong>
        {limit != null && <span class="quiet">of {unit(limit)}</span>}
        <span class="quiet end">most {unit(Math.max(0, ...points))}</span>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${title}: ${now}`}>
        {[1, 2, 3].map((quarter) => (
          <line key={quarter} x1={0} x2={WIDTH} y1={(HEIGHT * quarter) / 4} y2={(HEIGHT * quarter) / 4} />
        ))}
        {line.length > 1 && <polygon points={`${at(0)},${HEIGHT} ${line.join(" ")} ${WIDTH},${HEIGHT}`} />}
        <polyline points={line.join(" ")} />
      </svg>
    </figure>
  );
}

function Facts({ info, usage }: { readonly info: SandboxInfo; readonly usage: Usage | null }) {
  const { limits } = info.spec;
  const rows: [string, string][] = [
    ["Processes", `${usage?.pids ?? "–"} of ${limits.pids ?? "any number"}`],
    ["Disk", `${bytes(usage?.disk_bytes)} of ${limits.disk === null ? "any size" : bytes(limits.disk)}`],
    ["Files", String(usage?.files ?? "–")],
    ["Killed for memory", String(usage?.memory_kills ?? "–")],
    ["Refused connections", String(usage?.network_refused ?? "–")],
    ["Limits that are enforced", info.limits_enforced.join(", ") || "none"],
    ["Isolation", `${info.isolation}, users ${info.users}`],
    ["Working directory", info.spec.workdir],
    ["Made", moment(info.created_at)],
    ["Ends", moment(info.ends_at)],
  ];
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name + value}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
