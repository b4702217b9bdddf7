// What the timeline says in words: the tooltip, the announcement of a selection, the table.
import { el } from "../dom";
import { duration, moment } from "../times";
import type { Attempt, Model } from "./model";

/** "1 server", "20,070 servers". */
export function counted(count: number, thing: string): string {
  return `${count.toLocaleString()} ${thing}${count === 1 ? "" : "s"}`;
}

function placeOf(attempt: Attempt): string {
  const gpus = attempt.bars.reduce((sum, bar) => sum + bar.gpus, 0);
  const names = [...new Set(attempt.bars.map((bar) => bar.server.name))];
  const shown = names.length > 4 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
  return `${counted(gpus, "GPU")} on ${shown}`;
}

/** Title and lines about an attempt. */
export function about(attempt: Attempt, nowS: number): [string, string[]] {
  const at = (time: number) => moment(new Date(time * 1000), new Date(nowS * 1000), true);
  if (attempt.state === "merged") {
    const span = `${at(attempt.start)} – ${at(attempt.end ?? nowS)}`;
    return [attempt.name, [span, placeOf(attempt), "Zoom in to see each of them."]];
  }
  const title = attempt.job === null ? "A job that you may not see" : `Job ${attempt.job} ${attempt.name}`;
  const lines = [placeOf(attempt)];
  if (attempt.user) lines.unshift(`User ${attempt.user}`);
  const end = attempt.end === null ? "now" : at(attempt.end);
  lines.push(`${at(attempt.start)} – ${end}, ${duration((attempt.end ?? nowS) - attempt.start)}`);
  if (attempt.state) lines.push(attempt.reason ? `${attempt.state} (${attempt.reason})` : attempt.state);
  if (attempt.stop !== null && attempt.end === null) lines.push(`asked to stop at ${at(attempt.stop)}`);
  if (attempt.p50 !== null) {
    const range = attempt.p10 !== null && attempt.p90 !== null ? ` (80%: ${at(attempt.p10)} – ${at(attempt.p90)})` : "";
    lines.push(`predicted end ${at(attempt.p50)}${range}`);
  }
  return [title, lines];
}

/** A table of the newest attempts of a period. */
export function tableOf(model: Model, fromS: number, toS: number, nowS: number, jobLink: string, most: number): HTMLElement {
  const rows = [...model.attempts.values()].filter((each) => each.start < toS && (each.end ?? nowS) > fromS);
  rows.sort((left, right) => right.start - left.start);
  const head = el("tr");
  for (const name of ["Job", "User", "State", "GPUs", "Started", "Ended"]) head.append(el("th", { scope: "col" }, name));
  const body = el("tbody");
  for (const each of rows.slice(0, most)) {
    const name = each.job === null ? each.name || "hidden" : `${each.job} ${each.name}`;
    const job = each.job === null ? name : el("a", { href: jobLink + each.job }, name);
    const time = (at: number | null) => (at === null ? "–" : moment(new Date(at * 1000), new Date(nowS * 1000), true));
    const end = each.end ?? each.p50;
    const row = el("tr", {}, el("td", {}, job), el("td", {}, each.user || "–"), el("td", {}, each.state || "–"));
    row.append(el("td", {}, placeOf(each)), el("td", {}, time(each.start)));
    row.append(el("td", {}, each.end === null && end !== null ? `predicted ${time(end)}` : time(end)));
    body.append(row);
  }
  const shown = rows.length > most ? `The newest ${most} of ${rows.length} attempts` : `${rows.length} attempts`;
  const caption = el("caption", {}, `${shown} in the period that the chart shows`);
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Attempts" }, el("table", { class: "data" }, caption, el("thead", {}, head), body));
}
