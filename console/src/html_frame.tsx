/** HTML of a code result, in a frame of an opaque origin that can reach nothing of this page. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";

const LEAST_HEIGHT = 40;
const MOST_HEIGHT = 800;

export function HtmlFrame({ html }: { readonly html: string }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(LEAST_HEIGHT);
  useLayoutEffect(() => {
    const listen = (event: MessageEvent<unknown>): void => {
      const inside = frame.current?.contentWindow;
      if (inside === null || inside === undefined || event.source !== inside) return;
      const told = event.data as { cove?: unknown; height?: unknown } | null;
      if (told?.cove === "ready") inside.postMessage({ cove: "html", html }, "*");
      if (told?.cove === "height" && typeof told.height === "number" && Number.isFinite(told.height)) {
        setHeight(Math.min(Math.max(told.height, LEAST_HEIGHT), MOST_HEIGHT));
      }
    };
    addEventListener("message", listen);
    return () => removeEventListener("message", listen);
  }, [html]);
  return (
    <iframe
      ref={frame}
      class="html-result"
      title="HTML result"
      sandbox="allow-scripts"
      src="/console/frame"
      style={{ height: `${height}px` }}
    />
  );
}
