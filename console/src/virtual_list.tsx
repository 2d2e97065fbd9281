/** A list of rows of one height, of which only those in view are in the page. */

import { type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

const MORE_ROWS = 6;

interface Props<Item> {
  readonly items: readonly Item[];
  readonly height: number;
  readonly label: string;
  readonly render: (item: Item, index: number) => ComponentChildren;
  /** Keep the end in view while it grows, unless the reader has scrolled up. */
  readonly followsEnd?: boolean;
}

export function VirtualList<Item>({ items, height, label, render, followsEnd = false }: Props<Item>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const isAtEnd = useRef(true);
  const look = (): void => {
    const element = box.current;
    if (element === null) return;
    isAtEnd.current = element.scrollTop + element.clientHeight >= element.scrollHeight - height;
    setView({ top: element.scrollTop, height: element.clientHeight });
  };
  useEffect(() => {
    const observer = new ResizeObserver(look);
    if (box.current !== null) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (followsEnd && isAtEnd.current && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [items.length]);
  const first = Math.max(0, Math.floor(view.top / height) - MORE_ROWS);
  const last = Math.min(items.length, Math.ceil((view.top + view.height) / height) + MORE_ROWS);
  return (
    <div class="virtual" ref={box} onScroll={look} tabIndex={0} role="region" aria-label={label}>
      <div class="virtual-all" style={{ height: `${items.length * height}px` }}>
        <div class="virtual-seen" style={{ transform: `translateY(${first * height}px)` }}>
          {items.slice(first, last).map((item, index) => render(item, first + index))}
        </div>
      </div>
    </div>
  );
}
