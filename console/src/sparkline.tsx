/** A small chart of the last samples. */

const WIDTH = 72;
const HEIGHT = 18;

interface Props {
  readonly samples: readonly number[];
  readonly most?: number | null | undefined;
  readonly label: string;
  readonly kind: "memory" | "cpus" | "network";
}

export function Sparkline({ samples, most, label, kind }: Props) {
  const top = Math.max(most ?? 0, ...samples, 1e-9);
  const step = WIDTH / Math.max(1, samples.length - 1);
  const points = samples.map((value, index) => `${(index * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1)}`);
  return (
    <svg class={`spark ${kind}`} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label}>
      {points.length > 1 && <polygon points={`0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`} />}
      {points.length > 1 && <polyline points={points.join(" ")} />}
    </svg>
  );
}
