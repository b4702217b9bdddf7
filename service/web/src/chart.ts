// Charts: what a job has done against what was predicted, and predicted against actual totals. uPlot draws; a table says the same.
import uPlot from "uplot";
import { el } from "./dom";
import { inkOf, type Ink } from "./gantt/colours";
import { onTheme } from "./theme";
import { moment } from "./times";
import type { Widget } from "./widgets";

interface Progress {
  kind: "progress";
  at: string[];
  iteration: number[];
  predicted: [number, number, number] | null;
}

interface Scatter {
  kind: "scatter";
  actual: number[];
  predicted: number[];
}

type Chart = Progress | Scatter;

const HEIGHT = 260;
const ROWS_MAX = 200;

const count = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

/** The clock at each tick, with seconds where ticks are closer than a minute; the day as well where it is not today and changes. */
function clocks(times: readonly number[]): (string | null)[] {
  const dates = times.map((time) => new Date(time * 1000));
  const seconds = times.length > 1 && (times[1] as number) - (times[0] as number) < 60;
  const texts = dates.map((date, place) => moment(date, place > 0 ? (dates[place - 1] as Date) : new Date(), seconds).replace(", ", "\n"));
  // Ticks within a second have one label.
  return texts.map((text, place) => (place > 0 && text === texts[place - 1] ? null : text));
}

function axis(ink: Ink, label: string): uPlot.Axis {
  const font = `11px ${ink.font}`;
  return { stroke: ink.muted, font, label, labelFont: font, labelSize: 18, grid: { stroke: ink.line, width: 1 }, ticks: { stroke: ink.line, width: 1 } };
}

/** A horizontal band over the whole width. */
function band(plot: uPlot, low: number, high: number, colour: string): void {
  const [top, bottom] = [plot.valToPos(high, "y", true), plot.valToPos(low, "y", true)];
  plot.ctx.save();
  plot.ctx.globalAlpha = 0.16;
  plot.ctx.fillStyle = colour;
  plot.ctx.fillRect(plot.bbox.left, top, plot.bbox.width, bottom - top);
  plot.ctx.restore();
}

function line(plot: uPlot, from: [number, number], to: [number, number], colour: string, dash: number[]): void {
  const { ctx } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  ctx.clip();
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash(dash.map((each) => each * devicePixelRatio));
  ctx.beginPath();
  ctx.moveTo(plot.valToPos(from[0], "x", true), plot.valToPos(from[1], "y", true));
  ctx.lineTo(plot.valToPos(to[0], "x", true), plot.valToPos(to[1], "y", true));
  ctx.stroke();
  ctx.restore();
}

function progress(chart: Progress, ink: Ink, width: number): [uPlot.Options, uPlot.AlignedData] {
  const { predicted } = chart;
  const top = Math.max(...chart.iteration, predicted?.[2] ?? 0, 1) * 1.04;
  const below = (plot: uPlot) => {
    if (!predicted) return;
    const { min = 0, max = 1 } = plot.scales["x"] ?? {};
    band(plot, predicted[0], predicted[2], ink.calm);
    line(plot, [min as number, predicted[1]], [max as number, predicted[1]], ink.calm, [6, 4]);
  };
  const options: uPlot.Options = {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: true, y: false } },
    scales: { x: { time: true }, y: { range: [0, top] } },
    axes: [
      { ...axis(ink, "Time"), space: 70, values: (_, times) => clocks(times) },
      { ...axis(ink, "Iterations"), size: 56, values: (_, values) => values.map((value) => count.format(value)) },
    ],
    series: [{}, { label: "done", stroke: ink.accent, width: 2, points: { show: chart.at.length < 40, fill: ink.accent } }],
    hooks: { drawClear: [below] },
  };
  return [options, [chart.at.map((time) => Date.parse(time) / 1000), chart.iteration]];
}

/** Whole decades around all values, so that the diagonal is a diagonal. */
function decades(chart: Scatter): [number, number] {
  const all = [...chart.actual, ...chart.predicted].filter((value) => value > 0);
  if (!all.length) return [1, 10];
  const low = 10 ** Math.floor(Math.log10(Math.min(...all)));
  return [low, Math.max(10 ** Math.ceil(Math.log10(Math.max(...all))), low * 10)];
}

function scatter(chart: Scatter, ink: Ink, width: number): [uPlot.Options, uPlot.AlignedData] {
  const pairs = chart.actual.map((actual, index) => [actual, chart.predicted[index] as number] as const);
  const sorted = pairs.filter(([actual, predicted]) => actual > 0 && predicted > 0).sort((left, right) => left[0] - right[0]);
  const range = decades(chart);
  const below = (plot: uPlot) => {
    for (const factor of [0.5, 2]) line(plot, [range[0], range[0] * factor], [range[1], range[1] * factor], ink.muted, [2, 4]);
    line(plot, [range[0], range[0]], [range[1], range[1]], ink.calm, [6, 4]);
  };
  const values = (_: uPlot, ticks: (number | null)[]) => ticks.map((tick) => (tick === null ? null : count.format(tick)));
  const options: uPlot.Options = {
    width,
    height: HEIGHT + 60,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, distr: 3, range: () => range }, y: { distr: 3, range: () => range } },
    axes: [
      { ...axis(ink, "Actual"), values },
      { ...axis(ink, "Predicted"), size: 56, values },
    ],
    series: [{}, { label: "predicted", stroke: ink.accent, paths: () => null, points: { show: true, size: 9, fill: ink.accent, stroke: ink.panel, width: 1 } }],
    hooks: { drawClear: [below] },
  };
  return [options, [sorted.map(([actual]) => actual), sorted.map(([, predicted]) => predicted)]];
}

function words(chart: Chart): string {
  if (chart.kind === "progress") {
    const last = chart.iteration.at(-1) ?? 0;
    const { predicted } = chart;
    const against = predicted ? ` Predicted in all: ${predicted.map((each) => count.format(each)).join(", ")} (10%, 50%, 90%).` : "";
    return `${count.format(last)} iterations done.${against}`;
  }
  const twice = chart.actual.filter((actual, index) => Math.abs(Math.log(actual / (chart.predicted[index] as number))) <= Math.log(2));
  return `${chart.actual.length} jobs; ${twice.length} of them predicted within a factor of two (dotted lines).`;
}

function table(chart: Chart): HTMLElement {
  const [names, rows] =
    chart.kind === "progress"
      ? [["Time", "Iterations"], chart.at.map((time, index) => [moment(new Date(time), new Date(), true), String(chart.iteration[index])])]
      : [["Actual", "Predicted"], chart.actual.map((actual, index) => [String(actual), String(chart.predicted[index])])];
  const body = el("tbody");
  for (const row of rows.slice(-ROWS_MAX)) body.append(el("tr", {}, ...row.map((text) => el("td", { class: "num" }, text))));
  const head = el("tr", {}, ...names.map((name) => el("th", { scope: "col", class: "num" }, name)));
  const shown = el("table", { class: "data" }, el("thead", {}, head), body);
  return el("details", {}, el("summary", {}, "As a table"), el("div", { class: "scroll" }, shown));
}

function chartIn(host: Element): Chart | null {
  const text = host.querySelector('script[type="application/json"]')?.textContent;
  return text ? (JSON.parse(text) as Chart) : null;
}

class Plot implements Widget {
  private plot: uPlot | null = null;
  private readonly box = el("div", { class: "chart", role: "img" });
  private readonly note = el("p", { class: "muted small" });
  private details = el("details");
  private readonly stops: (() => void)[] = [];
  private width = 0;

  constructor(
    private readonly host: HTMLElement,
    private chart: Chart,
  ) {
    host.replaceChildren(this.box, this.note, this.details);
    const sized = new ResizeObserver(() => {
      if (this.box.clientWidth !== this.width) this.draw();
    });
    sized.observe(this.box);
    this.stops.push(() => sized.disconnect(), onTheme(() => this.draw()));
    this.show();
  }

  refresh(fresh: Element): void {
    const chart = chartIn(fresh);
    if (!chart || JSON.stringify(chart) === JSON.stringify(this.chart)) return;
    this.chart = chart;
    this.show();
  }

  destroy(): void {
    for (const stop of this.stops) stop();
    this.plot?.destroy();
  }

  private show(): void {
    const text = words(this.chart);
    this.note.textContent = text;
    this.box.setAttribute("aria-label", text);
    const fresh = table(this.chart) as HTMLDetailsElement;
    fresh.open = this.details.open;
    this.details.replaceWith(fresh);
    this.details = fresh;
    this.draw();
  }

  private draw(): void {
    this.width = this.box.clientWidth;
    const ink = inkOf(this.host);
    const width = Math.max(Math.min(this.width, this.chart.kind === "scatter" ? 640 : this.width), 200);
    const [options, data] = this.chart.kind === "scatter" ? scatter(this.chart, ink, width) : progress(this.chart, ink, width);
    this.plot?.destroy();
    this.plot = new uPlot(options, data, this.box);
  }
}

export function mount(host: HTMLElement): Widget {
  const chart = chartIn(host);
  if (!chart) throw new Error("The chart has no data.");
  return new Plot(host, chart);
}
