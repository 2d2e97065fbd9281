/** Tabs that are links, walked through with the arrow keys. */

import { useEffect } from "preact/hooks";

interface Props {
  readonly label: string;
  readonly tabs: readonly { id: string; title: string; link: string }[];
  readonly current: string;
}

export function TabBar({ label, tabs, current }: Props) {
  useEffect(() => document.getElementById(`tab-${current}`)?.scrollIntoView({ block: "nearest", inline: "nearest" }), [current]);
  const walk = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const at = tabs.findIndex((tab) => tab.id === current);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    if (step === 0 || next === undefined) return;
    event.preventDefault();
    location.hash = next.link;
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={walk}>
      {tabs.map(({ id, title, link }) => (
        <a
          key={id}
          id={`tab-${id}`}
          role="tab"
          href={link}
          aria-selected={id === current}
          aria-controls="tab-panel"
          tabIndex={id === current ? 0 : -1}
        >
          {title}
        </a>
      ))}
    </div>
  );
}
