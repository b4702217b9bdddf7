// Durations as people write them into a field: "2 h 30 min", "90 min", "1 d 12 h".

const UNITS: Record<string, number> = { d: 86_400, h: 3600, min: 60, m: 60, s: 1 };

/** Seconds; null for what is no duration. A number needs a unit. */
export function secondsOf(text: string): number | null {
  const parts = [...text.matchAll(/\s*(\d+(?:\.\d+)?)\s*(d|h|min|m|s)(?![a-z])/gy)];
  const length = parts.reduce((sum, part) => sum + part[0].length, 0);
  if (!parts.length || text.slice(length).trim()) return null;
  return parts.reduce((sum, part) => sum + Number(part[1]) * (UNITS[part[2] as string] as number), 0);
}

/** All of it, so that reading it back gives the same number. */
export function spanOf(seconds: number): string {
  const parts: string[] = [];
  let rest = seconds;
  for (const unit of ["d", "h", "min"] as const) {
    const count = Math.floor(rest / (UNITS[unit] as number));
    rest -= count * (UNITS[unit] as number);
    if (count) parts.push(`${count} ${unit}`);
  }
  if (rest || !parts.length) parts.push(`${Number(rest.toFixed(3))} s`);
  return parts.join(" ");
}
