/** Values as people read them. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  let value = count;
  for (; value >= 1024 && unit < UNITS.length - 1; unit++) value /= 1024;
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function age(since: string, now = Date.now()): string {
  const seconds = Math.max(0, (now - Date.parse(since)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function time(at: string): string {
  return new Date(at).toLocaleTimeString(undefined, { hour12: false });
}

export function moment(at: string | null | undefined): string {
  return at === null || at === undefined ? "never" : new Date(at).toLocaleString();
}

export function seconds(value: number): string {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
}

export function words(command: string | string[]): string {
  return typeof command === "string" ? command : command.join(" ");
}

/** Parse "512M" or "4G", or nothing. */
export function parseBytes(text: string): number | null {
  const found = /^\s*([\d.]+)\s*([kmgt]?)i?b?\s*$/i.exec(text);
  if (found === null) return null;
  const power = { "": 0, k: 1, m: 2, g: 3, t: 4 }[(found[2] ?? "").toLowerCase()] ?? 0;
  return Math.round(Number(found[1]) * 1024 ** power);
}

/** Bytes of a journal, which are in base64, as text. */
export function decodedText(data: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(data), (character) => character.charCodeAt(0)));
}
