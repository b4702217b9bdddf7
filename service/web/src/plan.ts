// The answer of POST /v1/plans, shown.
import { el } from "./dom";
import { duration, moment } from "./times";

interface Spread {
  p10: string | null;
  p50: string | null;
  p90: string | null;
}

interface Plan {
  name: string;
  gpus: number;
  prediction: { unit: string; p10: number; p50: number; p90: number; source: string; model_version: string | null } | null;
  placement: { server: string; gpus: number }[];
  iteration_s: number | null;
  fits_now: boolean;
  start_at: Spread | null;
  finish_at: Spread | null;
  samples: number | null;
  reason: string | null;
}

export interface Plans {
  plans: Plan[];
}

function size(value: number, unit: string): string {
  return unit === "iterations" ? Math.round(value).toLocaleString() : duration(value);
}

function when(spread: Spread | null): string {
  if (!spread?.p50) return "not foreseen";
  const [low, mid, high] = [spread.p10, spread.p50, spread.p90].map((time) => (time ? moment(new Date(time)) : "?"));
  return `${mid} (80%: ${low} – ${high})`;
}

/** One planned job as a list of facts. */
export function planView(plan: Plan): HTMLElement {
  const list = el("dl", { class: "kv" });
  const add = (name: string, text: string) => list.append(el("dt", {}, name), el("dd", {}, text));
  add("GPUs", String(plan.gpus));
  const { prediction } = plan;
  if (prediction) {
    const { unit, p10, p50, p90, source, model_version: version } = prediction;
    const total = `${size(p50, unit)}${unit === "iterations" ? " iterations" : ""} (80%: ${size(p10, unit)} – ${size(p90, unit)})`;
    add("Predicted", `${total}, ${source.replaceAll("_", " ")}${version ? `, model ${version}` : ""}`);
  }
  if (plan.iteration_s !== null) add("Iteration", `${(plan.iteration_s * 1000).toLocaleString(undefined, { maximumFractionDigits: 1 })} ms`);
  add("Best placement", plan.placement.map((each) => `${each.gpus} on ${each.server}`).join(", ") || "none");
  add("Fits now", plan.fits_now ? "yes" : "no");
  add("Starts", when(plan.start_at));
  add("Finishes", when(plan.finish_at));
  if (plan.samples) add("From", `${plan.samples} sampled futures`);
  if (plan.reason) add("Why", plan.reason);
  return el("article", {}, el("h3", {}, plan.name), list);
}
