// Times in the reader's zone, and durations as people write them.
import { all } from "./dom";

const DAY_S = 86_400;

/** "5 d 12 h", "2 h 05 min", "3 min 20 s", "45 s", "4.2 s": the two largest units, as service/domain/duration.py writes them. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  const sign = seconds < 0 ? "−" : "";
  const size = Math.abs(seconds);
  if (size < 9.95) return `${sign}${size === 0 ? "0" : size.toFixed(1)} s`;
  let rest = Math.round(size);
  if (rest >= DAY_S) rest = Math.round(rest / 3600) * 3600;
  else if (rest >= 3600) rest = Math.round(rest / 60) * 60;
  const parts: string[] = [];
  for (const [unit, length] of [["d", DAY_S], ["h", 3600], ["min", 60], ["s", 1]] as const) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count > 0) parts.push(`${parts.length ? String(count).padStart(2, "0") : count} ${unit}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return sign + (parts.join(" ") || "0 s");
}

/** "5 min ago", "in 2 h 10 min", "now": one unit, two for what is hours ahead. */
function ago(then: Date, now: Date): string {
  const size = (now.getTime() - then.getTime()) / 1000;
  const span = Math.abs(size);
  if (span < 5) return "now";
  const [length, unit] = span < 60 ? [1, "s"] : span < 3600 ? [60, "min"] : span < 2 * DAY_S ? [3600, "h"] : [DAY_S, "d"];
  if (size < 0 && span >= 3600) return `in ${duration(span)}`;
  const text = `${Math.floor(span / length)} ${unit}`;
  return size > 0 ? `${text} ago` : `in ${text}`;
}

const format = (options: Intl.DateTimeFormatOptions) => new Intl.DateTimeFormat(undefined, { hourCycle: "h23", ...options });
const CLOCK = format({ hour: "2-digit", minute: "2-digit" });
const SECOND = format({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = format({ day: "numeric", month: "short" });
const DAY_OF_YEAR = format({ day: "numeric", month: "short", year: "numeric" });
const WHOLE = format({ dateStyle: "full", timeStyle: "long" } as Intl.DateTimeFormatOptions);

/** The day, with its year unless it is this year's. */
export function day(time: Date, now = new Date()): string {
  return (time.getFullYear() === now.getFullYear() ? DAY : DAY_OF_YEAR).format(time);
}

/** The clock alone for today, else with the day. */
export function moment(time: Date, now = new Date(), seconds = false): string {
  const clock = (seconds ? SECOND : CLOCK).format(time);
  return time.toDateString() === now.toDateString() ? clock : `${day(time, now)}, ${clock}`;
}

function show(element: HTMLTimeElement, now: Date): void {
  const time = new Date(element.dateTime);
  if (Number.isNaN(time.getTime())) return;
  const as = element.dataset["as"];
  const text =
    as === "ago" ? ago(time, now)
    : as === "since" ? duration(Math.max(0, Math.round((now.getTime() - time.getTime()) / 1000)))
    : as === "date" ? day(time, now)
    : as === "full" ? `${day(time, now)}, ${SECOND.format(time)}`
    : moment(time, now);
  if (element.textContent !== text) element.textContent = text;
  const whole = WHOLE.format(time);
  if (element.title !== whole) element.title = whole;
}

/** Write each <time datetime> below a node in the reader's zone. */
export function localise(below: ParentNode, now = new Date()): void {
  for (const element of all<HTMLTimeElement>(below, "time[datetime]")) show(element, now);
}

/** Keep ages and running durations right. */
export function tick(): void {
  setInterval(() => {
    if (document.hidden) return;
    const now = new Date();
    for (const element of all<HTMLTimeElement>(document, 'time[data-as="ago"], time[data-as="since"]')) show(element, now);
  }, 5000);
}
