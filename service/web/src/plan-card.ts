// The answer of POST /v1/plans as cards, one a job.
import { el } from "./dom";
import { duration, moment } from "./times";

interface Spread {
  p10: string | null;
  p50: string | null;
  p90: string | null;
}

interface TrainingPlan {
  model: string | null;
  gpu_type: string | null;
  iteration: { time_s: number; bottleneck: string; tokens_per_s: number } | null;
  memory: { peak_bytes: number; limit_bytes: number | null; stage: number } | null;
  warnings: string[];
}

export interface Plan {
  name: string;
  gpus: number;
  prediction: { unit: string; p10: number; p50: number; p90: number; source: string; model_version: string | null } | null;
  placement: { server: string; gpus: number }[];
  iteration_s: number | null;
  plan?: TrainingPlan | null;
  fits_now: boolean;
  placement_now: { server: string; gpus: number }[];
  start_at: Spread | null;
  finish_at: Spread | null;
  samples: number | null;
  reason: string | null;
}

export interface Plans {
  plans: Plan[];
}

function gpus(count: number): string {
  return `${count.toLocaleString()} ${count === 1 ? "GPU" : "GPUs"}`;
}

function size(value: number, unit: string): string {
  return unit === "iterations" ? Math.round(value).toLocaleString() : duration(value);
}

function card(label: string, value: string, ...notes: (string | null | undefined | false)[]): HTMLElement {
  const said = notes.filter(Boolean).join("; ");
  return el("div", { class: "card" }, el("div", { class: "label" }, label), el("div", { class: "value" }, value), said ? el("div", { class: "note" }, said) : null);
}

function time(label: string, spread: Spread | null, missing: string | null): HTMLElement {
  if (!spread?.p50) return card(label, "not foreseen", missing);
  const [low, mid, high] = [spread.p10, spread.p50, spread.p90].map((each) => (each ? moment(new Date(each)) : "?"));
  return card(label, mid as string, `80%: ${low} – ${high}`);
}

function iteration(seconds: number): string {
  return seconds < 1 ? `${(seconds * 1000).toLocaleString(undefined, { maximumSignificantDigits: 3 })} ms` : duration(seconds);
}

function gib(bytes: number): string {
  return `${(bytes / 2 ** 30).toLocaleString(undefined, { maximumFractionDigits: 1 })} GiB`;
}

function memory(found: NonNullable<TrainingPlan["memory"]>, type: string | null): HTMLElement {
  const { peak_bytes: peak, limit_bytes: limit, stage } = found;
  const made = card("Memory of a GPU", gib(peak), limit !== null && `of ${gib(limit)}${type ? ` of ${type}` : ""}`, `most in stage ${stage}`);
  if (limit !== null) made.append(el("meter", { min: 0, max: limit, value: peak, high: limit * 0.95, "aria-label": "Share of the memory of a GPU" }));
  return made;
}

/** One planned job. */
export function planCard(plan: Plan): HTMLElement {
  const { prediction, plan: training } = plan;
  const cards = el("div", { class: "cards" });
  if (prediction) {
    const { unit, p10, p50, p90, source, model_version: version } = prediction;
    const total = `${size(p50, unit)}${unit === "iterations" ? " iterations" : ""}`;
    cards.append(card("Predicted", total, `80%: ${size(p10, unit)} – ${size(p90, unit)}`, source.replaceAll("_", " "), version && `model ${version}`));
  } else cards.append(card("Predicted", "nothing yet", "there is no history to predict from"));
  cards.append(time("Starts", plan.start_at, plan.reason));
  cards.append(time("Finishes", plan.finish_at, plan.start_at ? plan.reason : null));
  const [where, now] = [plan.placement, plan.placement_now].map((shares) => shares.map((each) => `${gpus(each.gpus)} on ${each.server}`).join(", "));
  const free = now === where ? "free now" : now ? `free now: ${now}` : "not free now";
  cards.append(card("Best placement", where || "none", plan.placement.length > 1 && `${gpus(plan.gpus)} in all`, where || now ? free : null));
  const seconds = training?.iteration?.time_s ?? plan.iteration_s;
  if (seconds !== null) {
    const found = training?.iteration;
    cards.append(card("Iteration", iteration(seconds), found && `limited by ${found.bottleneck.replaceAll("_", " ")}`, found && `${Math.round(found.tokens_per_s).toLocaleString()} tokens/s`));
  }
  if (training?.memory) cards.append(memory(training.memory, training.gpu_type));
  const warnings = training?.warnings.map((text) => el("p", { class: "warn" }, text)) ?? [];
  const from = plan.samples ? el("p", { class: "muted small" }, `Times from ${plan.samples} sampled futures.`) : null;
  return el("article", { class: "plan-card" }, el("h3", {}, plan.name), cards, ...warnings, from);
}
