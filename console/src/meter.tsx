/** How much of something is used, as a bar with words. */

const NEARLY = 0.9;

interface Props {
  readonly label: string;
  readonly value: number;
  /** `null` for no end: the bar is left out. */
  readonly most: number | null;
  readonly said: string;
  readonly isGoodWhenFull?: boolean;
}

export function Meter({ label, value, most, said, isGoodWhenFull = false }: Props) {
  const share = most === null || most <= 0 ? 0 : Math.min(1, Math.max(0, value / most));
  const kind = isGoodWhenFull ? "good" : share >= NEARLY ? "bad" : "";
  return (
    <div class="meter" data-meter={label}>
      <span class="meter-label">{label}</span>
      <span class="meter-said">{said}</span>
      {most !== null && (
        <span class="meter-bar" aria-hidden="true">
          <span class={kind} style={{ width: `${(share * 100).toFixed(1)}%` }} />
        </span>
      )}
    </div>
  );
}
